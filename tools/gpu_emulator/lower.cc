// From parsed instructions to executable ones: where registers live, which handler runs, where
// lanes meet again.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "machine.h"
#include "notes.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = Operand::Kind;

bool WritesFirst(const Instruction& i) {
  static const std::set<std::string> none = {
      "st",        "red",      "bra",     "bar",           "barrier",    "ret",
      "exit",      "trap",     "cp",      "prefetch",      "fence",      "membar",
      "brx",       "stmatrix", "extern",  "nanosleep",     "setmaxnreg", "griddepcontrol",
      "prefetchu", "brkpt",    "discard", "applypriority", "multimem"};
  const std::string& op = i.words[0];
  if (op == "mbarrier")
    return i.words[1] != "init" && i.words[1] != "inval" && i.words[1] != "expect_tx" &&
           i.words[1] != "complete_tx";
  if (op == "barrier" || op == "bar")
    return i.words.size() > 1 && std::find(i.words.begin(), i.words.end(), "red") != i.words.end();
  if (op == "wgmma") return i.words[1] == "mma_async";
  return none.count(op) == 0;
}

void Registers(const Operand& o, std::vector<int>& to) {
  if (o.kind == Kind::kRegister) to.push_back(o.reg);
  for (const Operand& part : o.parts) Registers(part, to);
}

struct Roles {
  std::vector<int> writes, reads;
};

Roles RolesOf(const Instruction& i) {
  Roles roles;
  for (size_t n = 0; n < i.operands.size(); ++n) {
    const bool written = n == 0 && WritesFirst(i) && i.operands[0].kind != Kind::kAddress;
    Registers(i.operands[n], written ? roles.writes : roles.reads);
  }
  if (i.guard >= 0 || i.words[0] == "wgmma" || i.words[0] == "mbarrier")
    roles.reads.insert(roles.reads.end(), roles.writes.begin(), roles.writes.end());
  if (i.guard >= 0) roles.reads.push_back(i.guard);
  return roles;
}

bool EndsBlock(const Instruction& i) {
  return i.words[0] == "bra" || i.words[0] == "ret" || i.words[0] == "exit" ||
         i.words[0] == "trap" || i.words[0] == "brx";
}

bool FallsThrough(const Instruction& i) {
  return !EndsBlock(i) || i.guard >= 0;
}

struct Places {
  std::vector<uint32_t> of;  // predicates: index; others: offset
  uint64_t bytes = 0;
  uint32_t predicates = 0;
};

// Each register lives from its first to its last instruction, loops included; registers that never
// live together share a place. A register that dies where another is born does not: not every
// handler goes lane by lane.
Places Allocate(const ptx::Kernel& kernel, const std::vector<bool>& leader) {
  const int count = static_cast<int>(kernel.code.size());
  const int registers = static_cast<int>(kernel.registers.size());
  std::vector<int> starts;
  std::vector<int> block_of(count);
  for (int n = 0; n < count; ++n) {
    if (leader[n]) starts.push_back(n);
    block_of[n] = static_cast<int>(starts.size()) - 1;
  }
  const int blocks = static_cast<int>(starts.size());
  const int words = (registers + 63) / 64;
  std::vector<uint64_t> live_in(size_t(blocks) * words), gen(live_in.size()), kill(live_in.size()),
      live_out(live_in.size());
  std::vector<int> first(registers, count), last(registers, -1);
  const auto touch = [&](int reg, int at) {
    first[reg] = std::min(first[reg], at);
    last[reg] = std::max(last[reg], at);
  };
  for (int n = 0; n < count; ++n) {
    uint64_t* g = &gen[size_t(block_of[n]) * words];
    uint64_t* k = &kill[size_t(block_of[n]) * words];
    const Roles roles = RolesOf(kernel.code[n]);
    for (const int reg : roles.reads) {
      if (!(k[reg / 64] >> (reg % 64) & 1)) g[reg / 64] |= uint64_t{1} << (reg % 64);
      touch(reg, n);
    }
    for (const int reg : roles.writes) {
      k[reg / 64] |= uint64_t{1} << (reg % 64);
      touch(reg, n);
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (int b = blocks - 1; b >= 0; --b) {
      const int end = b + 1 < blocks ? starts[b + 1] : count;
      uint64_t* out = &live_out[size_t(b) * words];
      const auto join = [&](int target) {
        const uint64_t* in = &live_in[size_t(block_of[target]) * words];
        for (int w = 0; w < words; ++w) out[w] |= in[w];
      };
      const Instruction& final = kernel.code[end - 1];
      if (final.target >= 0) join(final.target);
      if (FallsThrough(final) && end < count) join(end);
      uint64_t* in = &live_in[size_t(b) * words];
      for (int w = 0; w < words; ++w) {
        const uint64_t now = gen[size_t(b) * words + w] | (out[w] & ~kill[size_t(b) * words + w]);
        if (now != in[w]) {
          in[w] = now;
          changed = true;
        }
      }
    }
  }
  for (int b = 0; b < blocks; ++b) {
    const int end = (b + 1 < blocks ? starts[b + 1] : count) - 1;
    for (int w = 0; w < words; ++w) {
      for (uint64_t bits = live_in[size_t(b) * words + w]; bits != 0; bits &= bits - 1)
        touch(w * 64 + __builtin_ctzll(bits), starts[b]);
      for (uint64_t bits = live_out[size_t(b) * words + w]; bits != 0; bits &= bits - 1)
        touch(w * 64 + __builtin_ctzll(bits), end);
    }
  }
  Places places;
  places.of.resize(registers);
  std::vector<int> order;
  for (int r = 0; r < registers; ++r)
    if (last[r] >= 0) order.push_back(r);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return first[a] < first[b]; });
  struct Live {
    int last;
    int width;
    uint32_t place;
    bool operator<(const Live& other) const { return last > other.last; }
  };
  std::vector<Live> heap;
  std::vector<uint32_t> free[4];
  for (const int r : order) {
    while (!heap.empty() && heap.front().last < first[r]) {
      std::pop_heap(heap.begin(), heap.end());
      free[heap.back().width].push_back(heap.back().place);
      heap.pop_back();
    }
    const int width = static_cast<int>(kernel.registers[r]);
    uint32_t place;
    if (!free[width].empty()) {
      place = free[width].back();
      free[width].pop_back();
    } else if (kernel.registers[r] == ptx::Width::kPredicate) {
      place = places.predicates++;
    } else {
      place = static_cast<uint32_t>(places.bytes);
      places.bytes += Bytes(kernel.registers[r]) * kLanes;
    }
    places.of[r] = place;
    heap.push_back({last[r], width, place});
    std::push_heap(heap.begin(), heap.end());
  }
  return places;
}

// A label: lanes that wait here join, and lanes that are behind go first.
bool Join(Warp& w, const Inst&, uint32_t) {
  if (w.groups.empty()) return false;
  const uint32_t here = w.pc - 1;
  bool behind = false;
  for (size_t n = 0; n < w.groups.size();) {
    if (w.groups[n].pc == here && !w.groups[n].held) {
      w.active |= w.groups[n].mask;
      w.groups.erase(w.groups.begin() + n);
      w.rotate = false;
    } else {
      behind |= w.groups[n].pc < here && !w.groups[n].held;
      ++n;
    }
  }
  if (behind && !w.rotate) {
    w.groups.push_back({here, w.active, false});
    NextGroup(w);
  }
  return false;
}

}  // namespace

Program::~Program() {
  std::free(constant_base);
}

bool NextGroup(Warp& w) {
  size_t best = w.groups.size();
  for (size_t n = 0; n < w.groups.size(); ++n)
    if (!w.groups[n].held && (best == w.groups.size() || w.groups[n].pc < w.groups[best].pc))
      best = n;
  if (best == w.groups.size()) return false;
  w.pc = w.groups[best].pc;
  w.active = w.groups[best].mask;
  w.groups.erase(w.groups.begin() + best);
  return true;
}

bool Converge(Warp& w, const Inst& i, uint32_t members) {
  const uint32_t need = members & w.live;
  if ((need & ~w.active) == 0) return Together(w, need);
  const uint32_t here = w.pc - 1;
  for (size_t n = 0; n < w.groups.size();) {
    if (w.groups[n].pc == here) {
      w.active |= w.groups[n].mask;
      w.groups.erase(w.groups.begin() + n);
    } else {
      ++n;
    }
  }
  if ((need & ~w.active) == 0) {
    w.rotate = false;
    return Together(w, need);
  }
  w.groups.push_back({here, w.active, true});
  if (!NextGroup(w)) {
    std::string text = "lanes of a warp wait for each other at different places:";
    for (const Group& group : w.groups) {
      char line[64];
      std::snprintf(line, sizeof line, "\n    lanes %08x at ", group.mask);
      text += line + Place(*w.program, w.program->code[group.pc]);
    }
    Fault(w, i, text);
  }
  return false;
}

uint32_t Lowering::Constant(uint64_t bits, int bytes) {
  if (bytes < 8) bits &= (uint64_t{1} << (bytes * 8)) - 1;
  const std::pair<uint64_t, int> key(bits, bytes);
  for (const auto& [known, place] : constants_)
    if (known == key) return place;
  std::vector<char>& c = program_.constants;
  const auto place = static_cast<uint32_t>(c.size());
  c.resize(c.size() + bytes * kLanes);
  for (int lane = 0; lane < kLanes; ++lane)
    std::memcpy(c.data() + place + lane * bytes, &bits, bytes);
  constants_.push_back({key, place | kConstantBit});
  return place | kConstantBit;
}

int Lowering::WidthOf(const Operand& o) const {
  if (o.kind != Kind::kRegister) return 8;
  return Bytes(program_.kernel->registers[o.reg]);
}

uint32_t Lowering::Value(const Operand& o, int bytes) {
  switch (o.kind) {
    case Kind::kRegister:
      return places_[o.reg];
    case Kind::kImmediate:
    case Kind::kFloat32:
    case Kind::kFloat64: {
      if (o.kind == Kind::kFloat64 && bytes == 4) {
        double value;
        std::memcpy(&value, &o.bits, 8);
        const auto narrow = static_cast<float>(value);
        uint32_t bits;
        std::memcpy(&bits, &narrow, 4);
        return Constant(bits, 4);
      }
      return Constant(o.bits, bytes);
    }
    case Kind::kSymbol:
      if (o.symbol->space == ptx::Symbol::Space::kGlobal)
        return Constant(reinterpret_cast<uint64_t>(o.symbol->data.get()), 8);
      if (o.symbol->space == ptx::Symbol::Space::kShared) {
        const uint64_t at =
            o.symbol->size == 0 ? program_.dynamic_shared : kSharedBase + o.symbol->offset;
        return Constant(at, bytes);
      }
      break;
    default:
      break;
  }
  Die("operand of kind " + std::to_string(static_cast<int>(o.kind)) + " " + o.name + " in " +
      program_.kernel->name);
}

uint32_t Lowering::Predicate(const Operand& o) const {
  // The last two predicates of a program are constants: true and false.
  if (o.kind == Kind::kImmediate) return program_.predicates - (o.bits != 0 ? 2 : 1);
  if (o.kind != Kind::kRegister || program_.kernel->registers[o.reg] != ptx::Width::kPredicate)
    Die("no predicate where one belongs in " + program_.kernel->name);
  return places_[o.reg];
}

const uint32_t* Lowering::List(std::vector<uint32_t> values) {
  program_.lists.push_back(std::move(values));
  return program_.lists.back().data();
}

uint32_t Lowering::Scratch64() {
  const uint64_t place = program_.register_bytes;
  program_.register_bytes += 8 * kLanes;
  return static_cast<uint32_t>(place);
}

void Lowering::Unknown(const Instruction& source) const {
  std::string text = "no handler for " + source.opcode + " (";
  for (const Operand& o : source.operands)
    text += std::to_string(static_cast<int>(o.kind)) + (o.name.empty() ? "" : ":" + o.name) + " ";
  const auto it = program_.module->files.find(source.file);
  Die(text + ") at " + (it == program_.module->files.end() ? "?" : it->second) + ":" +
      std::to_string(source.line) + " in " + Demangled(program_.kernel->name));
}

uint64_t DynamicShared(const ptx::Kernel& kernel) {
  uint64_t align = 16;
  for (const auto& symbol : kernel.symbols)
    if (symbol->space == ptx::Symbol::Space::kShared && symbol->size == 0)
      align = std::max(align, symbol->align);
  return (kSharedBase + kernel.shared_bytes + align - 1) / align * align;
}

std::unique_ptr<Program> Lower(std::unique_ptr<ptx::Kernel> kernel, const ptx::Module& module) {
  auto program = std::make_unique<Program>();
  program->module = &module;
  program->kernel = std::move(kernel);
  const ptx::Kernel& k = *program->kernel;
  program->dynamic_shared = static_cast<uint32_t>(DynamicShared(k));

  const int count = static_cast<int>(k.code.size());
  std::vector<bool> leader(count, false);
  leader[0] = true;
  for (int n = 0; n < count; ++n) {
    if (k.code[n].target >= 0) leader[std::min(k.code[n].target, count - 1)] = true;
    if (EndsBlock(k.code[n]) && n + 1 < count) leader[n + 1] = true;
  }
  Places places = Allocate(k, leader);
  program->register_bytes = places.bytes;
  program->predicates = places.predicates + 2;
  const std::vector<uint32_t> place_of = places.of;
  Lowering lowering(*program, std::move(places.of));
  std::vector<uint32_t> index(count);
  for (int n = 0; n < count; ++n) {
    const Instruction& source = k.code[n];
    index[n] = static_cast<uint32_t>(program->code.size());
    if (leader[n]) {
      Inst join;
      join.run = Join;
      join.source = &source;
      program->code.push_back(join);
    }
    Inst inst;
    inst.source = &source;
    if (source.guard >= 0) inst.guard = 1 + 2 * place_of[source.guard] + source.guard_negated;
    if (!LowerControl(lowering, source, inst) && !LowerArithmetic(lowering, source, inst) &&
        !LowerConversion(lowering, source, inst) && !LowerMemory(lowering, source, inst) &&
        !LowerAsync(lowering, source, inst) && !LowerMatrix(lowering, source, inst)) {
      lowering.Unknown(source);
    }
    if (inst.run == nullptr) lowering.Unknown(source);
    program->code.push_back(inst);
  }
  for (Inst& inst : program->code)
    if (inst.source->target >= 0 && inst.run != Join)
      inst.imm = index[std::min(inst.source->target, count - 1)];
  program->register_bytes = (program->register_bytes + 63) / 64 * 64;
  const uint64_t bytes = (program->constants.size() + 63) / 64 * 64 + 64;
  program->constant_base = static_cast<char*>(std::aligned_alloc(64, bytes));
  std::memcpy(program->constant_base, program->constants.data(), program->constants.size());
  return program;
}

}  // namespace emu
