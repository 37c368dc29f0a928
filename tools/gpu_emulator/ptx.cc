#include "ptx.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ptx_text.h"

namespace ptx {
namespace {

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> words;
  size_t from = 0;
  while (from <= text.size()) {
    const size_t end = std::min(text.find('.', from), text.size());
    words.emplace_back(text.substr(from, end - from));
    from = end + 1;
  }
  return words;
}

uint64_t Number(const Token& token) {
  return std::strtoull(std::string(token.text).c_str(), nullptr, 0);
}

uint64_t SizeOfType(std::string_view type) {
  if (type == ".pred") return 1;
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) Fail("type " + std::string(type));
  return std::strtoull(std::string(type.substr(digits)).c_str(), nullptr, 10) / 8;
}

uint64_t RoundUp(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

struct Declaration {
  std::string name;
  uint64_t align = 1, element = 1, count = 1;
  bool unsized = false;
  std::vector<uint64_t> values;
};

// From after the state space: [.align N] .type name[count] [= {..}].
Declaration ReadDeclaration(const std::vector<Token>& t, size_t& i) {
  Declaration d;
  bool aligned = false;
  while (t[i].text[0] == '.') {
    if (t[i].is(".align")) {
      d.align = Number(t[i + 1]);
      aligned = true;
      i += 2;
    } else if (t[i].is(".ptr") || t[i].is(".global") || t[i].is(".const") || t[i].is(".shared") ||
               t[i].is(".local")) {
      ++i;
    } else {
      d.element = SizeOfType(t[i].text);
      ++i;
    }
  }
  if (!aligned) d.align = d.element;
  d.name = t[i++].text;
  while (i < t.size() && t[i].is("[")) {
    if (t[i + 1].is("]")) {
      d.unsized = true;
      i += 2;
    } else {
      d.count *= Number(t[i + 1]);
      i += 3;
    }
  }
  if (i < t.size() && t[i].is("=")) {
    ++i;
    if (t[i].is("{")) {
      while (!t[i].is("}")) {
        if (!t[i].is("{") && !t[i].is(",")) d.values.push_back(Number(t[i]));
        ++i;
      }
      ++i;
    } else {
      d.values.push_back(Number(t[i++]));
    }
  }
  return d;
}

}  // namespace

struct Source::Function {
  bool is_kernel = false;
  std::vector<Declaration> parameters, results;
  std::string_view text;
  std::vector<Token> directives;
  std::vector<Token> tokens;  // of the text, once they are wanted

  const std::vector<Token>& Body() {
    if (tokens.empty()) tokens = Tokens(text, false);
    return tokens;
  }
};

Source::~Source() = default;

Source::Source(std::string text) : text_(WithoutPackets(std::move(text))) {
  const std::vector<Token> t = Tokens(text_, true);
  size_t i = 0;
  const auto parameters = [&](std::vector<Declaration>& to) {
    ++i;  // (
    while (!t[i].is(")")) {
      if (t[i].is(".param") || t[i].is(",") || t[i].is(".reg")) {
        ++i;
        continue;
      }
      to.push_back(ReadDeclaration(t, i));
    }
    ++i;
  };
  while (i < t.size()) {
    if (t[i].is(".version") || t[i].is(".target") || t[i].is(".address_size")) {
      i += 2;
      while (i < t.size() && t[i].is(",")) i += 2;
    } else if (t[i].is(".file")) {
      std::string name(t[i + 2].text);
      module_.files[static_cast<int>(Number(t[i + 1]))] = name.substr(1, name.size() - 2);
      i += 3;
      while (i < t.size() && t[i].is(",")) i += 2;
    } else if (t[i].is(".visible") || t[i].is(".extern") || t[i].is(".weak") || t[i].is(";") ||
               t[i].is(".common")) {
      ++i;
    } else if (t[i].is(".section")) {  // of a debugger
      while (!t[i].is("}")) ++i;
      ++i;
    } else if (t[i].is(".global") || t[i].is(".const") || t[i].is(".shared")) {
      const bool shared = t[i].is(".shared");
      ++i;
      const Declaration d = ReadDeclaration(t, i);
      auto symbol = std::make_unique<Symbol>();
      symbol->space = shared ? Symbol::Space::kShared : Symbol::Space::kGlobal;
      symbol->name = d.name;
      symbol->align = d.align;
      symbol->size = d.unsized ? 0 : d.element * d.count;
      if (!shared && symbol->size != 0) {
        symbol->data.reset(static_cast<char*>(std::aligned_alloc(256, RoundUp(symbol->size, 256))),
                           std::free);
        std::memset(symbol->data.get(), 0, symbol->size);
        for (size_t n = 0; n < d.values.size(); ++n)
          std::memcpy(symbol->data.get() + n * d.element, &d.values[n], d.element);
      }
      module_.symbols[d.name] = std::move(symbol);
    } else if (t[i].is(".entry") || t[i].is(".func")) {
      auto function = std::make_unique<Function>();
      function->is_kernel = t[i].is(".entry");
      ++i;
      if (t[i].is("(")) parameters(function->results);
      const std::string name(t[i++].text);
      if (t[i].is("(")) parameters(function->parameters);
      while (t[i].text[0] != '{' && !t[i].is(";")) function->directives.push_back(t[i++]);
      if (t[i].text[0] == '{') {
        function->text = t[i++].text;
        order_.push_back(name);
        functions_[name] = std::move(function);
      } else {
        ++i;
      }
    } else {
      Fail("unknown at the level of the module: " + std::string(t[i].text));
    }
  }
}

std::vector<std::string> Source::KernelNames() const {
  std::vector<std::string> names;
  for (const std::string& name : order_)
    if (functions_.at(name)->is_kernel) names.push_back(name);
  return names;
}

class BodyParser {
 public:
  BodyParser(Source& source, Kernel& kernel) : source_(source), kernel_(kernel) {}

  struct Scope {
    int parent = -1;
    std::map<std::string, int, std::less<>> registers;
    std::map<std::string, std::pair<Width, int>, std::less<>>
        families;  // %r<N>: width and first register
    std::map<std::string, const Symbol*, std::less<>> symbols;
    std::map<std::string, int, std::less<>> labels;
  };

  void Parse(Source::Function& function, int scope, int depth) {
    if (depth > 16) Fail("calls nested too deeply (recursion?) in " + kernel_.name);
    const std::vector<Token>& t = function.Body();
    const size_t first_return = returns_.size();
    std::vector<int> scopes{scope};
    size_t i = 0;
    while (i < t.size()) {
      const Token& token = t[i];
      if (token.is("{")) {
        scopes.push_back(NewScope(scopes.back()));
        ++i;
      } else if (token.is("}")) {
        scopes.pop_back();
        ++i;
      } else if (token.is(";")) {
        ++i;
      } else if (token.is(".loc")) {
        file_ = static_cast<int>(Number(t[i + 1]));
        line_ = static_cast<int>(Number(t[i + 2]));
        i += 4;
        // , function_name $L__info_string0, inlined_at 1 28 3
        if (i < t.size() && t[i].is(",")) {
          i += 3;
          if (i < t.size() && t[i].is("+")) i += 2;
          if (i < t.size() && t[i].is(",")) i += 5;
        }
      } else if (token.is(".pragma")) {
        while (!t[i].is(";")) ++i;
      } else if (token.is(".reg")) {
        ++i;
        DeclareRegisters(t, i, scopes.back());
      } else if (token.is(".local") || token.is(".shared") || token.is(".param")) {
        const bool shared = token.is(".shared");
        ++i;
        const Declaration d = ReadDeclaration(t, i);
        NewSymbol(scopes.back(), d, shared ? Symbol::Space::kShared : Symbol::Space::kLocal);
      } else if (i + 1 < t.size() && t[i + 1].is(":")) {
        scopes_[scopes.back()].labels.emplace(token.text, static_cast<int>(kernel_.code.size()));
        i += 2;
      } else {
        ParseInstruction(t, i, scopes.back(), depth, function.is_kernel);
      }
    }
    if (!function.is_kernel) {
      for (size_t n = first_return; n < returns_.size(); ++n)
        kernel_.code[returns_[n]].target = static_cast<int>(kernel_.code.size());
      returns_.resize(first_return);
    }
  }

  int NewScope(int parent) {
    scopes_.push_back({});
    scopes_.back().parent = parent;
    return static_cast<int>(scopes_.size()) - 1;
  }

  const Symbol* NewSymbol(int scope, const Declaration& d, Symbol::Space space) {
    auto symbol = std::make_unique<Symbol>();
    symbol->space = space;
    symbol->name = d.name;
    symbol->align = d.align;
    symbol->size = d.unsized ? 0 : d.element * d.count;
    uint64_t& bytes = space == Symbol::Space::kShared        ? kernel_.shared_bytes
                      : space == Symbol::Space::kKernelParam ? kernel_.parameter_bytes
                                                             : kernel_.local_bytes;
    bytes = RoundUp(bytes, d.align);
    symbol->offset = bytes;
    bytes += symbol->size;
    const Symbol* made = symbol.get();
    scopes_[scope].symbols[d.name] = made;
    kernel_.symbols.push_back(std::move(symbol));
    return made;
  }

  void BindSymbol(int scope, const std::string& name, const Symbol* symbol) {
    scopes_[scope].symbols[name] = symbol;
  }

  void ResolveBranches() {
    for (const auto& [at, label, scope] : branches_) {
      int found = -1;
      for (int s = scope; s >= 0 && found < 0; s = scopes_[s].parent) {
        const auto it = scopes_[s].labels.find(label);
        if (it != scopes_[s].labels.end()) found = it->second;
      }
      if (found < 0) Fail("label " + label);
      kernel_.code[at].target = found;
    }
  }

 private:
  static Width WidthOf(std::string_view type) {
    if (type == ".pred") return Width::kPredicate;
    switch (SizeOfType(type)) {
      case 1:
      case 2:
        return Width::k16;
      case 4:
        return Width::k32;
      case 8:
        return Width::k64;
      default:
        Fail("registers of type " + std::string(type));
    }
  }

  void DeclareRegisters(const std::vector<Token>& t, size_t& i, int scope) {
    const Width width = WidthOf(t[i++].text);
    while (!t[i].is(";")) {
      if (t[i].is(",")) {
        ++i;
        continue;
      }
      const std::string name(t[i++].text);
      if (t[i].is("<")) {
        scopes_[scope].families[name] = {width, static_cast<int>(kernel_.registers.size())};
        kernel_.registers.resize(kernel_.registers.size() + Number(t[i + 1]), width);
        i += 3;
      } else {
        scopes_[scope].registers[name] = static_cast<int>(kernel_.registers.size());
        kernel_.registers.push_back(width);
      }
    }
  }

  int FindRegister(std::string_view name, int scope) const {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    for (int s = scope; s >= 0; s = scopes_[s].parent) {
      const auto it = scopes_[s].registers.find(name);
      if (it != scopes_[s].registers.end()) return it->second;
      if (digits == name.size()) continue;
      const auto family = scopes_[s].families.find(name.substr(0, digits));
      if (family != scopes_[s].families.end())
        return family->second.second + std::atoi(std::string(name.substr(digits)).c_str());
    }
    return -1;
  }

  const Symbol* FindSymbol(std::string_view name, int scope) {
    for (int s = scope; s >= 0; s = scopes_[s].parent) {
      const auto it = scopes_[s].symbols.find(name);
      if (it != scopes_[s].symbols.end()) return it->second;
    }
    const auto it = source_.module_.symbols.find(std::string(name));
    if (it == source_.module_.symbols.end()) return nullptr;
    if (it->second->space != Symbol::Space::kShared) return it->second.get();
    // Shared memory declared outside of functions has its place in each kernel that uses it.
    const Symbol& module = *it->second;
    Declaration d;
    d.name = module.name;
    d.align = module.align;
    d.count = module.size;
    d.unsized = module.size == 0;
    return NewSymbol(0, d, Symbol::Space::kShared);
  }

  Operand ParseOperand(const std::vector<Token>& t, size_t& i, int scope) {
    Operand o = ParsePlain(t, i, scope);
    if (i < t.size() && t[i].is("|")) {
      ++i;
      Operand pair;
      pair.kind = Operand::Kind::kVector;
      pair.parts.push_back(o);
      pair.parts.push_back(ParsePlain(t, i, scope));
      return pair;
    }
    return o;
  }

  Operand ParsePlain(const std::vector<Token>& t, size_t& i, int scope) {
    Operand o;
    if (t[i].is("{")) {
      ++i;
      o.kind = Operand::Kind::kVector;
      while (!t[i].is("}")) {
        if (t[i].is(",")) {
          ++i;
          continue;
        }
        o.parts.push_back(ParseOperand(t, i, scope));
      }
      ++i;
      return o;
    }
    if (t[i].is("[")) {
      ++i;
      o.kind = Operand::Kind::kAddress;
      o.parts.push_back(ParsePlain(t, i, scope));
      while (!t[i].is("]")) {
        if (t[i].is("+")) {
          const bool minus = t[i + 1].is("-");
          i += minus ? 2 : 1;
          const auto value = static_cast<int64_t>(Number(t[i++]));
          o.offset += minus ? -value : value;
        } else if (t[i].is(",")) {
          ++i;
          o.parts.push_back(ParsePlain(t, i, scope));
        } else {
          Fail("address with " + std::string(t[i].text));
        }
      }
      ++i;
      return o;
    }
    if (t[i].is("!")) {
      ++i;
      o = ParsePlain(t, i, scope);
      o.negated = true;
      return o;
    }
    bool minus = false;
    if (t[i].is("-")) {
      minus = true;
      ++i;
    }
    const std::string_view text = t[i++].text;
    if (text == "_") return o;
    if (text[0] == '0' && (text.size() == 10) && (text[1] == 'f' || text[1] == 'F')) {
      o.kind = Operand::Kind::kFloat32;
      o.bits = std::strtoull(std::string(text.substr(2)).c_str(), nullptr, 16) ^
               (minus ? 0x80000000u : 0);
      return o;
    }
    if (text[0] == '0' && text.size() == 18 && (text[1] == 'd' || text[1] == 'D')) {
      o.kind = Operand::Kind::kFloat64;
      o.bits = std::strtoull(std::string(text.substr(2)).c_str(), nullptr, 16);
      return o;
    }
    if (text[0] >= '0' && text[0] <= '9') {
      if (text.find('.') != std::string_view::npos && text.find('x') == std::string_view::npos) {
        const double value = std::strtod(std::string(text).c_str(), nullptr) * (minus ? -1 : 1);
        o.kind = Operand::Kind::kFloat64;
        std::memcpy(&o.bits, &value, 8);
        return o;
      }
      o.kind = Operand::Kind::kImmediate;
      std::string digits(text);
      while (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.pop_back();
      o.bits = std::strtoull(digits.c_str(), nullptr, 0);
      if (minus) o.bits = -o.bits;
      return o;
    }
    o.reg = FindRegister(text, scope);
    if (o.reg >= 0) {
      o.kind = Operand::Kind::kRegister;
      return o;
    }
    o.symbol = FindSymbol(text, scope);
    if (o.symbol != nullptr) {
      o.kind = Operand::Kind::kSymbol;
      return o;
    }
    o.name = text;
    o.kind = text[0] == '%' ? Operand::Kind::kSpecial : Operand::Kind::kName;
    return o;
  }

  void ParseInstruction(
      const std::vector<Token>& t, size_t& i, int scope, int depth, bool in_kernel) {
    Instruction inst;
    inst.file = file_;
    inst.line = line_;
    if (t[i].is("@")) {
      ++i;
      if (t[i].is("!")) {
        inst.guard_negated = true;
        ++i;
      }
      inst.guard = FindRegister(t[i].text, scope);
      if (inst.guard < 0) Fail("predicate " + std::string(t[i].text));
      ++i;
    }
    inst.opcode = t[i++].text;
    inst.words = Split(inst.opcode);
    if (inst.words[0] == "call") {
      Call(t, i, scope, depth, inst);
      return;
    }
    while (!t[i].is(";")) {
      if (t[i].is(",")) {
        ++i;
        continue;
      }
      inst.operands.push_back(ParseOperand(t, i, scope));
    }
    ++i;
    if (inst.words[0] == "bra") {
      branches_.push_back({static_cast<int>(kernel_.code.size()), inst.operands.at(0).name, scope});
    } else if (inst.words[0] == "ret" && !in_kernel) {
      inst.opcode = "bra.uni";
      inst.words = {"bra", "uni"};
      inst.operands.clear();
      returns_.push_back(kernel_.code.size());
    }
    kernel_.code.push_back(std::move(inst));
  }

  // call.uni (result), function, (arguments); the function's body takes the place of the call.
  void Call(const std::vector<Token>& t, size_t& i, int scope, int depth, Instruction inst) {
    std::vector<std::string> results, arguments;
    const auto list = [&](std::vector<std::string>& to) {
      ++i;
      while (!t[i].is(")")) {
        if (!t[i].is(",")) to.emplace_back(t[i].text);
        ++i;
      }
      ++i;
      if (t[i].is(",")) ++i;
    };
    if (t[i].is("(")) list(results);
    const std::string name(t[i++].text);
    if (t[i].is(",")) ++i;
    if (t[i].is("(")) list(arguments);
    while (!t[i].is(";")) ++i;
    ++i;
    const auto it = source_.functions_.find(name);
    if (it == source_.functions_.end()) {
      // vprintf, __assertfail and the like: executed by name.
      inst.opcode = "extern." + name;
      inst.words = {"extern", name};
      for (const std::string& argument : arguments) {
        Operand o;
        o.kind = Operand::Kind::kSymbol;
        o.symbol = FindSymbol(argument, scope);
        inst.operands.push_back(o);
      }
      for (const std::string& result : results) {
        Operand o;
        o.kind = Operand::Kind::kSymbol;
        o.symbol = FindSymbol(result, scope);
        inst.operands.push_back(o);
      }
      kernel_.code.push_back(inst);
      return;
    }
    if (inst.guard >= 0) Fail("a guarded call of " + name);
    Source::Function& function = *it->second;
    const int inner = NewScope(0);
    for (size_t n = 0; n < arguments.size(); ++n)
      BindSymbol(inner, function.parameters.at(n).name, FindSymbol(arguments[n], scope));
    for (size_t n = 0; n < results.size(); ++n)
      BindSymbol(inner, function.results.at(n).name, FindSymbol(results[n], scope));
    Parse(function, inner, depth + 1);
  }

  Source& source_;
  Kernel& kernel_;
  std::vector<Scope> scopes_;
  struct Branch {
    int at;
    std::string label;
    int scope;
  };
  std::vector<Branch> branches_;
  std::vector<size_t> returns_;
  int file_ = 0, line_ = 0;
};

std::unique_ptr<Kernel> Source::ParseHead(const std::string& name) const {
  const auto it = functions_.find(name);
  if (it == functions_.end() || !it->second->is_kernel) return nullptr;
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  const std::vector<Token>& d = it->second->directives;
  const auto three = [&](size_t i, int* to) {
    for (int n = 0; n < 3 && i < d.size(); ++n, i += 2) {
      to[n] = static_cast<int>(Number(d[i]));
      if (i + 1 >= d.size() || !d[i + 1].is(",")) break;
    }
  };
  for (size_t i = 0; i < d.size(); ++i) {
    int values[3] = {1, 1, 1};
    if (d[i].is(".maxntid") || d[i].is(".reqntid")) {
      three(i + 1, values);
      kernel->max_threads = values[0] * values[1] * values[2];
    } else if (d[i].is(".minnctapersm")) {
      kernel->min_blocks = static_cast<int>(Number(d[i + 1]));
    } else if (d[i].is(".reqnctapercluster")) {
      three(i + 1, kernel->cluster);
    }
  }
  for (const Declaration& parameter : it->second->parameters) {
    const uint64_t at = RoundUp(kernel->parameter_bytes, parameter.align);
    kernel->parameters.push_back({at, parameter.element * parameter.count});
    kernel->parameter_bytes = at + kernel->parameters.back().size;
  }
  return kernel;
}

std::unique_ptr<Kernel> Source::ParseKernel(const std::string& name) {
  std::unique_ptr<Kernel> kernel = ParseHead(name);
  if (kernel == nullptr) return nullptr;
  Function& function = *functions_.at(name);
  BodyParser parser(*this, *kernel);
  const int scope = parser.NewScope(-1);
  kernel->parameter_bytes = 0;
  for (const Declaration& parameter : function.parameters)
    parser.NewSymbol(scope, parameter, Symbol::Space::kKernelParam);
  parser.Parse(function, scope, 0);
  function.tokens = {};
  Instruction end;
  end.opcode = "exit";
  end.words = {"exit"};
  kernel->code.push_back(end);
  parser.ResolveBranches();
  // Dynamic shared memory begins after the static one.
  kernel->local_bytes = RoundUp(kernel->local_bytes, 16);
  return kernel;
}

}  // namespace ptx
