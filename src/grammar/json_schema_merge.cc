// One schema's keywords, taken into the state of a SchemaExpander.

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/keyed_hash.h"
#include "grammar/json_schema_expand.h"
#include "grammar/json_schema_format.h"
#include "grammar/json_value_set.h"

namespace baltoro {

class SchemaMerger {
 public:
  SchemaMerger(SchemaExpander& expander, const Json* schema, SchemaExpander::State& state)
      : expander_(expander),
        context_(expander.context_),
        schema_(schema),
        state_(state),
        node_(state.node) {}

  Result<bool> Run() {
    for (const auto& [key, demand] : schema_->items()) {
      const auto handler = Handlers().find(key);
      if (handler != Handlers().end()) {
        BT_RETURN_IF_ERROR((this->*handler->second)(key, demand));
      } else if ((key == kTypeBits || key == kNotValues || key == kNotPattern) &&
                 context_.index.Kept(schema_)) {
        BT_RETURN_IF_ERROR(Own(key, demand));
      } else if (!IsAnnotation(key)) {
        BT_RETURN_IF_ERROR(context_.Unsupported(schema_, key));
      }
      if (!possible_) return false;
    }
    return true;
  }

 private:
  using State = SchemaExpander::State;
  using Branch = SchemaExpander::Branch;
  using Handler = Status (SchemaMerger::*)(const std::string& key, const Json& demand);

  static const std::unordered_map<std::string_view, Handler>& Handlers() {
    using M = SchemaMerger;
    static const std::unordered_map<std::string_view, Handler> table = {
        {"type", &M::Type},
        {"enum", &M::Enum},
        {"const", &M::Const},
        {"minimum", &M::NumberBounds},
        {"maximum", &M::NumberBounds},
        {"exclusiveMinimum", &M::NumberBounds},
        {"exclusiveMaximum", &M::NumberBounds},
        {"multipleOf", &M::MultipleOf},
        {"minLength", &M::Counts},
        {"maxLength", &M::Counts},
        {"minItems", &M::Counts},
        {"maxItems", &M::Counts},
        {"minProperties", &M::Counts},
        {"maxProperties", &M::Counts},
        {"pattern", &M::Text},
        {"format", &M::Text},
        {"uniqueItems", &M::UniqueItems},
        {"contains", &M::Contains},
        {"items", &M::Members},
        {"prefixItems", &M::Members},
        {"additionalItems", &M::Members},
        {"properties", &M::Members},
        {"patternProperties", &M::Members},
        {"additionalProperties", &M::Members},
        {"propertyNames", &M::Members},
        {"unevaluatedItems", &M::Unevaluated},
        {"unevaluatedProperties", &M::Unevaluated},
        {"required", &M::Required},
        {"dependentRequired", &M::Dependent},
        {"dependentSchemas", &M::Dependent},
        {"dependencies", &M::Dependent},
        {"$ref", &M::Ref},
        {"$dynamicRef", &M::Ref},
        {"$recursiveRef", &M::Ref},
        {"allOf", &M::AllOf},
        {"anyOf", &M::AnyOf},
        {"oneOf", &M::AnyOf},
        {"not", &M::NotThis},
        {"if", &M::If},
    };
    return table;
  }

  Status Type(const std::string& key, const Json& demand) {
    uint8_t types = 0;
    if (!TypesOf(demand, types)) {
      const std::string what = "there is no type " + demand.dump().substr(0, 80);
      if (context_.strict()) return context_.Failure(schema_, what);
      return context_.Unsupported(schema_, key, what);
    }
    const auto nullable = schema_->find("nullable");
    if (nullable != schema_->end() && *nullable == Json(true)) types |= kJsonNull;
    node_.types &= types;
    return Status();
  }

  Status Own(const std::string& key, const Json& demand) {
    if (key == kTypeBits) {
      node_.types &= static_cast<uint8_t>(demand.get<int>());
    } else if (key == kNotPattern) {
      node_.strings.push_back({.schema = schema_, .pattern = demand, .excluded = true});
    } else {
      JsonValueSet known;
      const std::vector<Json> before = node_.excluded;
      for (const Json& value : before) known.Add(value);
      for (const Json& value : demand) {
        if (known.Add(value)) Exclude(value);
      }
    }
    return Status();
  }

  void Exclude(const Json& value) {
    if (value.is_null()) node_.types &= static_cast<uint8_t>(~kJsonNull);
    if (value == Json::array()) node_.min_items = std::max<int64_t>(node_.min_items, 1);
    if (value == Json::object()) node_.min_properties = std::max<int64_t>(node_.min_properties, 1);
    node_.excluded.push_back(value);
  }

  Status Enum(const std::string& key, const Json& demand) {
    if (!demand.is_array()) return context_.Malformed(schema_, key, "an array");
    BT_RETURN_IF_ERROR(context_.Spend(schema_, static_cast<int64_t>(demand.size())));
    JsonValueSet known;
    if (node_.values) {
      for (const Json& value : *node_.values) known.Add(value);
    }
    std::vector<Json> values;
    for (const Json& value : demand) {
      if (!node_.values || known.Contains(value)) values.push_back(value);
    }
    possible_ = !values.empty();
    node_.values = std::move(values);
    return Status();
  }

  Status Const(const std::string&, const Json& demand) {
    if (node_.values && !ContainsEqual(*node_.values, demand)) {
      possible_ = false;
    } else {
      node_.values = std::vector<Json>{demand};
    }
    return Status();
  }

  Status NumberBounds(const std::string& key, const Json& demand) {
    const bool lower = key == "minimum" || key == "exclusiveMinimum";
    if (demand.is_boolean() && key.starts_with("exclusive")) return Status();  // draft 4
    if (!demand.is_number()) return context_.Malformed(schema_, key, "a number");
    const auto flag = schema_->find(lower ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool exclusive =
        key.starts_with("exclusive") || (flag != schema_->end() && *flag == Json(true));
    NumberBound bound{.value = Decimal::Of(demand), .exclusive = exclusive};
    std::optional<NumberBound>& held = lower ? node_.lower : node_.upper;
    const int order = held ? bound.value.Compare(held->value) : 0;
    if (!held || (lower ? order > 0 : order < 0) || (order == 0 && exclusive)) {
      held = std::move(bound);
    }
    return Status();
  }

  Status MultipleOf(const std::string& key, const Json& demand) {
    if (!demand.is_number() || demand.get<double>() <= 0) {
      return context_.Malformed(schema_, key, "a number above 0");
    }
    node_.multiples.emplace_back(schema_, Decimal::Of(demand));
    return Status();
  }

  // Lengths and numbers of members: whole and not negative.
  Status Count(const std::string& key, const Json& demand, int64_t& out) {
    constexpr double kMost = 1e15;
    if (!demand.is_number()) return context_.Malformed(schema_, key, "a whole number");
    const auto value = demand.get<double>();
    if (value < 0 || value != std::floor(value)) {
      return context_.Malformed(schema_, key, "a whole number of at least 0");
    }
    out = static_cast<int64_t>(std::min(value, kMost));
    return Status();
  }

  Status Counts(const std::string& key, const Json& demand) {
    int64_t count = 0;
    BT_RETURN_IF_ERROR(Count(key, demand, count));
    int64_t& min = key.ends_with("Length")  ? node_.min_length
                   : key.ends_with("Items") ? node_.min_items
                                            : node_.min_properties;
    int64_t& max = key.ends_with("Length")  ? node_.max_length
                   : key.ends_with("Items") ? node_.max_items
                                            : node_.max_properties;
    if (key.starts_with("min")) {
      if (key == "minProperties" && count > min) node_.properties_bound = schema_;
      min = std::max(min, count);
    } else {
      max = max < 0 ? count : std::min(max, count);
    }
    return Status();
  }

  Status Text(const std::string& key, const Json& demand) {
    if (!demand.is_string()) return context_.Malformed(schema_, key, "a string");
    const bool is_format = key == "format";
    if (is_format && IsFormatHint(demand.get_ref<const std::string&>())) return Status();
    node_.strings.push_back({.schema = schema_, .pattern = demand, .is_format = is_format});
    return Status();
  }

  Status UniqueItems(const std::string& key, const Json& demand) {
    if (!demand.is_boolean()) return context_.Malformed(schema_, key, "true or false");
    if (demand.get<bool>()) node_.unique_items = schema_;
    return Status();
  }

  Status Contains(const std::string& key, const Json& demand) {
    int64_t min = 1;
    const auto least = schema_->find("minContains");
    if (least != schema_->end()) BT_RETURN_IF_ERROR(Count("minContains", *least, min));
    if (schema_->contains("maxContains")) {
      BT_RETURN_IF_ERROR(context_.Unsupported(schema_, "maxContains"));
    }
    if (!demand.is_object() && !demand.is_boolean()) {
      return context_.Malformed(schema_, key, "a schema");
    }
    if (min > 0) node_.contains.push_back({.schema = schema_, .item = &demand, .min = min});
    return Status();
  }

  Status Members(const std::string& key, const Json& demand) {
    const bool map = key == "properties" || key == "patternProperties";
    const bool list = key == "prefixItems";
    const auto is_schema = [](const Json& one) { return one.is_object() || one.is_boolean(); };
    const bool children =
        demand.is_structured() && std::all_of(demand.begin(), demand.end(), is_schema);
    bool right = is_schema(demand);
    if (map) right = demand.is_object() && children;
    if (list) right = demand.is_array() && children;
    if (key == "items" && demand.is_array()) right = children;
    if (!right) return context_.Malformed(schema_, key, "made of schemas");
    if (node_.parts.empty() || node_.parts.back() != schema_) node_.parts.push_back(schema_);
    return Status();
  }

  Status Unevaluated(const std::string& key, const Json& demand) {
    if (demand == Json(true)) return Status();
    const auto has = [&](const char* keyword) { return schema_->contains(keyword); };
    const bool alone = state_.only == schema_;
    if (key == "unevaluatedProperties" && alone) {
      node_.unevaluated = &demand;
      return Status();
    }
    const bool plain = !has("allOf") && !has("anyOf") && !has("oneOf") && !has("if") &&
                       !has("$ref") && !has("$dynamicRef") && !has("not") && !has("contains") &&
                       !has("dependentSchemas");
    if (key == "unevaluatedItems" && plain && !demand.is_array()) return Members("items", demand);
    return context_.Unsupported(schema_, key, "beside schemas that it depends on");
  }

  Status Required(const std::string& key, const Json& demand) {
    if (demand.is_boolean()) {
      return context_.Unsupported(schema_, key, "it is a list, in the schema of the object");
    }
    if (!demand.is_array()) return context_.Malformed(schema_, key, "an array of strings");
    BT_RETURN_IF_ERROR(context_.Charge(schema_, static_cast<int64_t>(node_.required.size())));
    std::unordered_set<std::string, KeyedStringHash> known(node_.required.begin(),
                                                           node_.required.end());
    for (const Json& name : demand) {
      if (!name.is_string()) return context_.Malformed(schema_, key, "an array of strings");
      const auto& text = name.get_ref<const std::string&>();
      if (known.insert(text).second) node_.required.push_back(text);
    }
    return context_.Spend(schema_, static_cast<int64_t>(demand.size()));
  }

  // If one key is there, others are too, or a schema holds.
  Status Dependent(const std::string& key, const Json& demand) {
    if (!demand.is_object()) return context_.Malformed(schema_, key, "an object");
    for (const auto& [name, needs] : demand.items()) {
      const Json* absent = Absent(name);
      Json with = Json::object();
      with["required"] = needs.is_array() ? needs : Json::array();
      with["required"].push_back(name);
      const Json* present = context_.index.Keep(std::move(with), schema_);
      if (absent == nullptr || present == nullptr) {
        return context_.Failure(schema_, "the schema is too large");
      }
      Branch there{.schemas = {present}, .pick = {}};
      if (!needs.is_array()) there.schemas.push_back(&needs);
      state_.choices.push_back({Branch{.schemas = {absent}, .pick = {}}, std::move(there)});
    }
    return Status();
  }

  const Json* Absent(const std::string& name) {
    Json out = Json::object();
    out["properties"][name] = false;
    return context_.index.Keep(std::move(out), schema_);
  }

  Status Ref(const std::string& key, const Json& demand) {
    if (!demand.is_string()) return context_.Malformed(schema_, key, "a string");
    const auto& text = demand.get_ref<const std::string&>();
    BT_ASSIGN_OR_RETURN(const Json* target, key == "$ref"
                                                ? context_.index.Resolve(schema_, text)
                                                : context_.index.ResolveDynamic(schema_, text));
    state_.pending.push_back(target);
    // A schema that only refers is the one it refers to.
    const bool refers_only = std::all_of(
        schema_->items().begin(), schema_->items().end(),
        [&](const auto& item) { return item.key() == key || IsAnnotation(item.key()); });
    if (state_.only == schema_ && refers_only) state_.only = target;
    return Status();
  }

  Status AllOf(const std::string& key, const Json& demand) {
    if (!demand.is_array() || demand.empty()) {
      return context_.Malformed(schema_, key, "an array of schemas");
    }
    for (const Json& one : demand) state_.pending.push_back(&one);
    return Status();
  }

  Status AnyOf(const std::string& key, const Json& demand) {
    if (!demand.is_array() || demand.empty()) {
      return context_.Malformed(schema_, key, "an array of schemas");
    }
    std::vector<Branch> branches;
    for (size_t i = 0; i < demand.size(); ++i) {
      Branch branch{.schemas = {&demand[i]}, .pick = {}};
      if (key == "oneOf") branch.pick = SchemaNode::OneOfPick{.schema = schema_, .branch = i};
      branches.push_back(std::move(branch));
    }
    state_.choices.push_back(std::move(branches));
    return Status();
  }

  Status NotThis(const std::string& key, const Json& demand) {
    const std::optional<SchemaSet> others = expander_.Negate(&demand);
    if (!others) return context_.Unsupported(schema_, key);
    state_.negated = true;
    AddChoice(*others);
    return Status();
  }

  void AddChoice(const SchemaSet& schemas) {
    std::vector<Branch> branches;
    for (const Json* schema : schemas) branches.push_back({.schemas = {schema}, .pick = {}});
    state_.choices.push_back(std::move(branches));
  }

  Status If(const std::string& key, const Json& demand) {
    const auto then = schema_->find("then"), otherwise = schema_->find("else");
    if (then == schema_->end() && otherwise == schema_->end()) return Status();
    const std::optional<SchemaSet> others = expander_.Negate(&demand);
    if (!others) return context_.Unsupported(schema_, key, "a condition this complex");
    state_.negated = true;
    std::vector<Branch> branches = {{.schemas = {&demand}, .pick = {}}};
    if (then != schema_->end()) branches[0].schemas.push_back(&*then);
    for (const Json* other : *others) {
      Branch branch{.schemas = {other}, .pick = {}};
      if (otherwise != schema_->end()) branch.schemas.push_back(&*otherwise);
      branches.push_back(std::move(branch));
    }
    state_.choices.push_back(std::move(branches));
    return Status();
  }

  SchemaExpander& expander_;
  SchemaContext& context_;
  const Json* schema_;
  SchemaExpander::State& state_;
  SchemaNode& node_;
  bool possible_ = true;
};

Result<bool> SchemaExpander::Merge(const Json* schema, State& state) {
  if (schema->is_boolean()) return schema->get<bool>();
  if (!schema->is_object()) {
    return context_.Failure(schema, "a schema must be an object, true or false");
  }
  return SchemaMerger(*this, schema, state).Run();
}

}  // namespace baltoro
