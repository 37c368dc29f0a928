#pragma once

// The emulated machine: a kernel lowered to instructions of 32 lanes each, and the warps, blocks
// and launches that execute them. A warp runs in lockstep; lanes that took different branches are
// groups, of which the one that is least far in the program runs first, so that groups meet again.
// One thread of the host executes a whole launch.

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "ptx.h"

namespace emu {

constexpr int kLanes = 32;
constexpr uint32_t kAll = 0xFFFFFFFFu;
constexpr uint32_t kSharedBase = 1024;  // as on sm_90: the first KiB belongs to the system
constexpr uint32_t kConstantBit = 0x80000000u;

struct Warp;
struct Block;
struct Launch;
struct Inst;
struct Note;

// Executes one instruction for the lanes of the mask. True: the warp gives the processor back
// (w.stop says why).
using Handler = bool (*)(Warp& w, const Inst& i, uint32_t mask);

struct Inst {
  Handler run = nullptr;
  uint32_t guard = 0;  // 0: none; else 1 + 2 * predicate + negated
  uint32_t v[5] = {};  // operands: offsets in the registers or the constants; indices of predicates
  int64_t imm = 0;
  uint32_t aux[4] = {};
  const uint32_t* list = nullptr;  // more operands
  const ptx::Instruction* source = nullptr;
  mutable Range range = {};  // where it accessed memory last
};

struct Program {
  std::unique_ptr<ptx::Kernel> kernel;
  const ptx::Module* module = nullptr;
  std::vector<Inst> code;
  std::vector<char> constants;  // aligned copy is made below
  char* constant_base = nullptr;
  std::deque<std::vector<uint32_t>> lists;
  uint64_t register_bytes = 0;
  uint32_t predicates = 0;
  uint32_t dynamic_shared = 0;  // offset where it begins
  ~Program();
};

std::unique_ptr<Program> Lower(std::unique_ptr<ptx::Kernel> kernel, const ptx::Module& module);

enum class Stop : uint8_t { kNone, kSpin, kSlice, kBarrier, kClusterBarrier, kDone };

struct Group {
  uint32_t pc, mask;
  bool held;  // waits for other lanes at a .sync instruction
};

struct AsyncCopy {  // cp.async of one lane
  uint32_t lane, group, bytes, source_bytes;
  char* to;
  const char* from;
};

struct ProductOperand {  // shared memory that an unfinished wgmma reads, in pieces of 16 bytes
  uint32_t group;
  const Inst* inst;
  bool is_a;
  std::vector<uint32_t> offsets;
  std::vector<char> bytes;
};

struct Warp {
  char* base[2] = {};  // registers, constants
  uint32_t* predicates = nullptr;
  Block* block = nullptr;
  const Program* program = nullptr;
  uint32_t pc = 0, active = 0, live = 0;
  std::vector<Group> groups;
  int index = 0;
  Stop stop = Stop::kNone;
  int budget = 0;
  bool rotate = false;  // another group than the first runs, as the first spins
  int spins = 0;
  int barrier = 0;  // that it waits at
  bool cluster_arrived = false;
  uint64_t cluster_phase = 0;
  char* local = nullptr;
  std::vector<AsyncCopy> copies;
  uint32_t copy_group[kLanes] = {};
  std::vector<ProductOperand> products;
  uint32_t product_group = 0;
  uint64_t bulk_group = 0;
  // Lanes that are behind a griddepcontrol.wait, their own or that of threads who have met them at
  // a barrier since, and those whose loads need not be looked at (notes.h).
  uint32_t waited = kAll, loads_freely = kAll;
  std::vector<char> storage;

  template <class T>
  T* At(uint32_t offset) const {
    return reinterpret_cast<T*>(
        __builtin_assume_aligned(base[offset >> 31] + (offset & ~kConstantBit), 64));
  }
};

struct Barrier {
  uint32_t arrived = 0;   // threads
  uint32_t expected = 0;  // 0: all of the block
  bool open = false;      // some have arrived
  bool waited = false;    // one of these was behind a griddepcontrol.wait
};

struct BulkCopy {
  Block* barrier_block;
  uint32_t barrier;
  uint32_t bytes;
  std::function<void()> run;
};

struct Cluster {
  std::vector<Block*> blocks;
  uint32_t arrived = 0;
  uint64_t phase = 0;
  uint32_t live_threads = 0;
  // Whether somebody behind a griddepcontrol.wait has arrived, and a phase has ended since.
  bool waited_arrived = false, waited = false;
};

struct Block {
  Launch* launch = nullptr;
  uint32_t id[3] = {};
  uint32_t rank = 0;  // in its cluster
  std::shared_ptr<Cluster> cluster;
  char* shared = nullptr;  // address 0 of the window
  uint32_t shared_bytes = 0;
  std::vector<std::unique_ptr<Warp>> warps;
  Barrier barriers[16];
  std::vector<BulkCopy> bulk;
  int done_warps = 0;
  bool waited = false;  // a thread of it is behind a griddepcontrol.wait
  bool done() const { return done_warps == static_cast<int>(warps.size()); }
  ~Block();
};

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, cluster[3] = {1, 1, 1};
  uint64_t dynamic_shared = 0;
};

struct Launch {
  const Program* program = nullptr;
  LaunchShape shape;
  char* parameters = nullptr;
  int device = 0;
  const Note* note = nullptr;   // what the launch says of itself
  bool waited = false;          // a block of it has
  bool let_next_start = false;  // griddepcontrol.launch_dependents
  uint64_t effects = 0;         // grows with every visible change: a pass without one is idle
  uint64_t executed = 0;
  uint64_t random = 0;
  bool Random() {  // a coin
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 63) != 0;
  }
  std::vector<std::unique_ptr<Block>> blocks;  // in flight
};

struct Options {
  bool check_memory = true;
  bool notes = true;       // kernels are held to their notes
  bool only_warn = false;  // of breaches of these
  bool check_a =
      false;  // operand A of wgmma too: its rows that do not exist may lie over other data
  bool strict = false;
  bool run = true;  // kernels; without, for what they would be
  int late = 2;     // asynchronous copies: 0 at once, 1 when waited for, 2 at random
  uint32_t seed = 1;
  int verbose = 0;
  int multiprocessors = 132;
  int devices = 1;
  int idle_passes = 3000;
};
const Options& TheOptions();

// Executes the launch to its end. `idle` is called when no warp got further (other threads'
// launches may be waited for). False: on a device the next launch would begin behind that end, as
// nobody let it start before.
bool Execute(const Program& program,
             const LaunchShape& shape,
             char* parameters,
             int device,
             const Note* note,
             const std::function<void()>& idle);

// Blocks of this kernel that a multiprocessor holds.
int BlocksPerMultiprocessor(const ptx::Kernel& kernel, int threads, uint64_t dynamic_shared);
// Where a kernel's dynamic shared memory begins: behind the static one.
uint64_t DynamicShared(const ptx::Kernel& kernel);

// Said once for a place; EMU_STRICT=1 makes it a fault.
void Warn(const Warp& w, const Inst& i, const std::string& what);
[[noreturn]] void Fault(const Warp& w, const Inst& i, const std::string& what);
[[noreturn]] void Die(const std::string& what);
std::string Place(const Program& program, const Inst& i);  // file:line and the instruction
std::string Demangled(const std::string& name);

// ---- divergence

// Runs another group of the warp. False: every group waits for others.
bool NextGroup(Warp& w);
// True if all live lanes of `members` are at this instruction; otherwise the active ones wait and
// another group runs.
bool Converge(Warp& w, const Inst& i, uint32_t members);

inline bool Spin(Warp& w) {
  w.stop = Stop::kSpin;
  return true;
}

// The handler of an instruction, after its operands are in `inst`. Each file of handlers knows its
// opcodes.
class Lowering;
bool LowerArithmetic(Lowering& l, const ptx::Instruction& source, Inst& inst);
bool LowerConversion(Lowering& l, const ptx::Instruction& source, Inst& inst);
bool LowerMemory(Lowering& l, const ptx::Instruction& source, Inst& inst);
bool LowerAsync(Lowering& l, const ptx::Instruction& source, Inst& inst);
bool LowerControl(Lowering& l, const ptx::Instruction& source, Inst& inst);
bool LowerMatrix(Lowering& l, const ptx::Instruction& source, Inst& inst);

// What lowering an instruction needs: where registers and constants are.
class Lowering {
 public:
  Lowering(Program& program, std::vector<uint32_t> places)
      : program_(program), places_(std::move(places)) {}
  // Offset of an operand of `bytes` (2, 4, 8) a lane; constants are made as needed.
  uint32_t Value(const ptx::Operand& o, int bytes);
  uint32_t Constant(uint64_t bits, int bytes);
  uint32_t Predicate(const ptx::Operand& o) const;  // index
  int WidthOf(const ptx::Operand& o) const;  // bytes a lane of a register; 8 for other operands
  uint32_t Place(int reg) const { return places_[reg]; }
  const uint32_t* List(std::vector<uint32_t> values);
  uint32_t Scratch64();  // a register of its own
  ptx::Kernel& kernel() { return *program_.kernel; }
  Program& program() { return program_; }
  [[noreturn]] void Unknown(const ptx::Instruction& source) const;

 private:
  Program& program_;
  std::vector<uint32_t> places_;
  std::vector<std::pair<std::pair<uint64_t, int>, uint32_t>> constants_;
};

inline int Bytes(ptx::Width w) {
  return w == ptx::Width::k16 ? 2 : w == ptx::Width::k32 ? 4 : 8;
}

}  // namespace emu
