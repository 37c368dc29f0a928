#include "grammar/json_schema.h"

#include <utility>

#include "grammar/json_schema_emit.h"

namespace baltoro {
namespace {

Result<GrammarBuilder::Expr> Emit(JsonText& text,
                                  const Json& schema,
                                  const JsonSchemaOptions& options,
                                  std::vector<std::string>* unchecked) {
  BT_ASSIGN_OR_RETURN(SchemaIndex index, SchemaIndex::Make(schema, options.name));
  CompileBudget* budget = text.builder().limits().budget.get();
  SchemaContext context(std::move(index), options.strict, unchecked, budget);
  SchemaEmitter emitter(context, text);
  BT_ASSIGN_OR_RETURN(const auto value, emitter.Value({&schema}));
  context.CountUnlisted(&schema);
  if (context.spent()) return context.Spend(&schema);
  if (!value) return context.Failure(&schema, "no value is valid under the schema");
  return *value;
}

}  // namespace

Result<GrammarBuilder::Expr> AddJsonSchema(GrammarBuilder& builder,
                                           const Json& schema,
                                           const JsonSchemaOptions& options,
                                           std::vector<std::string>* unchecked) {
  if (!options.alone) {
    // Patterns beside each other may leave nothing, which only the finished automata show. A
    // schema that is one choice among others must not vanish from it unnoticed.
    GrammarLimits limits = options.limits;
    if (limits.budget == nullptr) limits.budget = builder.limits().budget;
    GrammarBuilder trial(std::move(limits));
    JsonText text(trial);
    BT_ASSIGN_OR_RETURN(const auto value, Emit(text, schema, options, unchecked));
    const GrammarBuilder::Rule start = trial.DeclareRule("schema");
    trial.DefineRule(start, value);
    const Result<Grammar> built = trial.Build(start);
    if (!built.ok()) {
      const std::string why = built.status().message();
      return InvalidArgument(options.name.empty() ? why : options.name + ": " + why);
    }
  }
  std::optional<JsonText> own;
  if (options.text == nullptr) own.emplace(builder);
  return Emit(own ? *own : *options.text, schema, options, options.alone ? unchecked : nullptr);
}

}  // namespace baltoro
