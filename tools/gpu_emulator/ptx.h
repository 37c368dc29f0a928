#pragma once

// PTX text as data: modules, kernels, instructions. Calls of functions are inlined while parsing,
// so a kernel is one list of instructions; recursion is refused.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx {

enum class Width : uint8_t { kPredicate, k16, k32, k64 };

struct Symbol {
  enum class Space {
    kKernelParam,
    kLocal,
    kShared,
    kGlobal
  };  // kLocal also holds the parameters of calls
  Space space = Space::kLocal;
  std::string name;
  uint64_t offset = 0;  // in its space; kGlobal: unused
  uint64_t size = 0;    // 0: dynamic shared memory
  uint64_t align = 1;
  std::shared_ptr<char> data;  // kGlobal
};

struct Operand {
  enum class Kind : uint8_t {
    kNone,
    kRegister,
    kImmediate,
    kFloat32,
    kFloat64,
    kSymbol,
    kSpecial,
    kVector,
    kAddress,
    kName
  };
  Kind kind = Kind::kNone;
  bool negated = false;  // !%p
  int reg = -1;          // kRegister
  uint64_t bits = 0;     // immediates
  int64_t offset = 0;    // kAddress: added to parts[0]
  const Symbol* symbol = nullptr;
  std::string name;  // kSpecial, kName (a label)
  std::vector<Operand>
      parts;  // kVector ({a, b} and a|b); kAddress: base, then a vector of coordinates
};

struct Instruction {
  std::string opcode;              // with all its modifiers
  std::vector<std::string> words;  // the opcode at its points
  std::vector<Operand> operands;
  int guard = -1;  // a predicate register
  bool guard_negated = false;
  int target = -1;  // branches: index of an instruction
  int file = 0, line = 0;
  bool Has(const char* word) const {
    for (const std::string& one : words)
      if (one == word) return true;
    return false;
  }
};

struct Parameter {
  uint64_t offset = 0, size = 0;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  uint64_t parameter_bytes = 0;
  uint64_t shared_bytes = 0;  // static
  uint64_t local_bytes = 0;   // a thread
  int max_threads = 1024;
  int min_blocks = 1;
  int cluster[3] = {1, 1, 1};  // .reqnctapercluster
  std::vector<Width> registers;
  std::vector<Instruction> code;
  std::vector<std::unique_ptr<Symbol>> symbols;
};

struct Module {
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::map<std::string, std::unique_ptr<Symbol>> symbols;
  std::map<int, std::string> files;
};

// Parses at once what is outside of functions and remembers where the bodies are; a kernel is
// parsed when it is first wanted. An error ends the process with a message.
class Source {
 public:
  explicit Source(std::string text);
  ~Source();
  std::vector<std::string> KernelNames() const;
  // What stands ahead of the body: parameters and bounds.
  std::unique_ptr<Kernel> ParseHead(const std::string& name) const;
  std::unique_ptr<Kernel> ParseKernel(const std::string& name);
  const Module& module() const { return module_; }

 private:
  friend class BodyParser;
  struct Function;
  std::string text_;
  Module module_;
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::vector<std::string> order_;
};

}  // namespace ptx
