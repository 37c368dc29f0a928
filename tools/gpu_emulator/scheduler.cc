// Executes launches: blocks begin when those under way get no further, up to what the device holds
// at a time.

#include "scheduler.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "notes.h"

namespace emu {
namespace {

constexpr int kBudget = 64;  // backward branches of a turn
constexpr uint64_t kSharedPerMultiprocessor = 228 * 1024;
constexpr int kThreadsPerMultiprocessor = 2048;

uint32_t LiveThreads(const Block& block) {
  uint32_t threads = 0;
  for (const auto& warp : block.warps) threads += warp->live != 0 ? kLanes : 0;
  return threads;
}

void Reductions(Block& block, uint32_t id);

void OpenBarrier(Block& block, uint32_t id) {
  Barrier& barrier = block.barriers[id];
  Reductions(block, id);
  for (const auto& warp : block.warps)
    if (warp->stop == Stop::kBarrier && warp->barrier == static_cast<int>(id)) {
      warp->stop = Stop::kNone;
      if (barrier.waited) MarkWaited(*warp, kAll);
    }
  barrier = {};
  ++block.launch->effects;
}

void EndPhase(Cluster& cluster) {
  cluster.arrived = 0;
  cluster.waited |= cluster.waited_arrived;
  ++cluster.phase;
}

// A warp that waits at a barrier has it before its next instruction.
const Inst& WaitsAt(const Warp& w) {
  return w.program->code[w.pc - 1];
}

void Reductions(Block& block, uint32_t id) {
  uint32_t all = 1, any = 0, count = 0;
  bool wanted = false;
  for (int pass = 0; pass < 2; ++pass) {
    for (const auto& warp : block.warps) {
      if (warp->stop != Stop::kBarrier || warp->barrier != static_cast<int>(id)) continue;
      const Inst& i = WaitsAt(*warp);
      if (i.aux[2] == 0) continue;
      wanted = true;
      const uint32_t p = (warp->predicates[i.v[3]] ^ (i.aux[3] != 0 ? kAll : 0)) & warp->live;
      if (pass == 0) {
        all &= p == warp->live;
        any |= p != 0;
        count += static_cast<uint32_t>(__builtin_popcount(p));
      } else if (i.aux[2] == 3) {
        std::fill_n(warp->At<uint32_t>(i.v[2]), kLanes, count);
      } else {
        warp->predicates[i.v[2]] = (i.aux[2] == 1 ? all : any) != 0 ? kAll : 0;
      }
    }
    if (!wanted) return;
  }
}

void RunWarp(Warp& w) {
  w.stop = Stop::kNone;
  w.budget = kBudget;
  const Inst* const code = w.program->code.data();
  uint64_t executed = 0;
  for (;;) {
    const Inst& i = code[w.pc++];
    ++executed;
    uint32_t m = w.active;
    if (i.guard != 0) {
      const uint32_t p = w.predicates[(i.guard - 1) / 2];
      m &= (i.guard - 1) % 2 != 0 ? ~p : p;
      if (m == 0) continue;
    }
    if (i.run(w, i, m)) break;
  }
  w.block->launch->executed += executed;
  if (w.stop == Stop::kSpin && !w.groups.empty() && ++w.spins > 4) {
    // Another group may do what this one waits for.
    w.spins = 0;
    size_t next = w.groups.size();
    for (size_t n = 0; n < w.groups.size(); ++n)
      if (!w.groups[n].held) {
        next = n;
        break;
      }
    if (next < w.groups.size()) {
      const Group group = w.groups[next];
      w.groups.erase(w.groups.begin() + next);
      w.groups.push_back({w.pc, w.active, false});
      w.pc = group.pc;
      w.active = group.mask;
      w.rotate = true;
    }
  }
}

std::unique_ptr<Block> NewBlock(Launch& launch, uint32_t x, uint32_t y, uint32_t z) {
  auto block = std::make_unique<Block>();
  const Program& program = *launch.program;
  block->launch = &launch;
  block->id[0] = x;
  block->id[1] = y;
  block->id[2] = z;
  const uint64_t bytes = program.dynamic_shared + launch.shape.dynamic_shared;
  block->shared_bytes = static_cast<uint32_t>(bytes);
  block->shared = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  std::memset(block->shared, 0xFF, bytes);  // NaN in every format
  const uint32_t threads = launch.shape.block[0] * launch.shape.block[1] * launch.shape.block[2];
  for (uint32_t first = 0; first < threads; first += kLanes) {
    auto warp = std::make_unique<Warp>();
    Warp& w = *warp;
    w.block = block.get();
    w.program = &program;
    w.index = static_cast<int>(first / kLanes);
    const uint64_t predicates = (program.predicates * 4 + 63) / 64 * 64;
    const uint64_t local = program.kernel->local_bytes * kLanes;
    w.storage.assign(program.register_bytes + predicates + local + 128, static_cast<char>(0xFF));
    char* at = w.storage.data() + (64 - reinterpret_cast<uint64_t>(w.storage.data()) % 64) % 64;
    w.base[0] = at;
    w.base[1] = program.constant_base;
    w.predicates = reinterpret_cast<uint32_t*>(at + program.register_bytes);
    w.predicates[program.predicates - 1] = 0;
    w.local = at + program.register_bytes + predicates;
    const uint32_t count = std::min<uint32_t>(kLanes, threads - first);
    w.live = w.active = count == kLanes ? kAll : (1u << count) - 1;
    BeginHolding(w);
    block->warps.push_back(std::move(warp));
  }
  return block;
}

void StartCluster(Launch& launch, uint64_t index) {
  const LaunchShape& s = launch.shape;
  const uint64_t nx = s.grid[0] / s.cluster[0], ny = s.grid[1] / s.cluster[1];
  const auto cx = static_cast<uint32_t>(index % nx), cy = static_cast<uint32_t>(index / nx % ny),
             cz = static_cast<uint32_t>(index / nx / ny);
  auto cluster = std::make_shared<Cluster>();
  uint32_t rank = 0;
  for (uint32_t z = 0; z < s.cluster[2]; ++z)
    for (uint32_t y = 0; y < s.cluster[1]; ++y)
      for (uint32_t x = 0; x < s.cluster[0]; ++x) {
        auto block =
            NewBlock(launch, cx * s.cluster[0] + x, cy * s.cluster[1] + y, cz * s.cluster[2] + z);
        block->rank = rank++;
        block->cluster = cluster;
        cluster->blocks.push_back(block.get());
        cluster->live_threads += s.block[0] * s.block[1] * s.block[2];
        launch.blocks.push_back(std::move(block));
      }
}

// Runs a block until none of its warps gets further. True: something happened.
bool RunBlock(Block& block) {
  Launch& launch = *block.launch;
  bool any = false;
  for (bool further = true; further && !block.done();) {
    further = false;
    for (const auto& warp : block.warps) {
      Warp& w = *warp;
      if (w.stop == Stop::kDone || w.stop == Stop::kBarrier) continue;
      const uint64_t before = launch.effects;
      RunWarp(w);
      if (w.stop == Stop::kDone) {
        ++block.done_warps;
        further = true;
        if (!w.copies.empty()) w.copies.clear();
      } else if (w.stop == Stop::kSlice || launch.effects != before) {
        further = true;
      }
    }
    any |= further;
  }
  if (block.done()) HoldEnd(block);
  return any;
}

[[noreturn]] void Deadlock(const Launch& launch) {
  std::map<std::string, std::string> waiting;  // place: who
  for (const auto& block : launch.blocks) {
    for (const auto& warp : block->warps) {
      if (warp->stop == Stop::kDone) continue;
      const Inst& i = launch.program->code[warp->pc > 0 ? warp->pc - 1 : 0];
      std::string& who =
          waiting[(warp->stop == Stop::kBarrier
                       ? "barrier " + std::to_string(warp->barrier) + " with " +
                             std::to_string(block->barriers[warp->barrier].arrived) + " threads: "
                       : std::string("spins: ")) +
                  Place(*launch.program, i)];
      if (who.size() < 160)
        who += " (" + std::to_string(block->id[0]) + "," + std::to_string(block->id[1]) + "," +
               std::to_string(block->id[2]) + ").w" + std::to_string(warp->index);
    }
  }
  std::string text = "no warp of " + Demangled(launch.program->kernel->name) + " gets further:";
  for (const auto& [place, who] : waiting) text += "\n  " + place + "\n     block and warp" + who;
  Die(text);
}

}  // namespace

Block::~Block() {
  std::free(shared);
}

bool ArriveAtBarrier(Warp& w, const Inst& i, uint32_t id, uint32_t count, bool only_arrives) {
  Block& block = *w.block;
  Barrier& barrier = block.barriers[id];
  if (barrier.open && barrier.expected != count)
    Fault(w, i,
          "barrier " + std::to_string(id) + " of " + std::to_string(count) +
              " threads, others wait there as " + std::to_string(barrier.expected));
  barrier.open = true;
  barrier.expected = count;
  barrier.arrived += kLanes;
  barrier.waited |= (w.waited & w.live) != 0;
  ++block.launch->effects;
  if (!only_arrives) {
    w.stop = Stop::kBarrier;
    w.barrier = static_cast<int>(id);
  }
  if (barrier.arrived >= (count != 0 ? count : LiveThreads(block))) OpenBarrier(block, id);
  return w.stop == Stop::kBarrier;
}

void ArriveAtCluster(Warp& w) {
  Cluster& cluster = *w.block->cluster;
  w.cluster_arrived = true;
  w.cluster_phase = cluster.phase;
  cluster.waited_arrived |= (w.waited & w.live) != 0;
  cluster.arrived += static_cast<uint32_t>(__builtin_popcount(w.live));
  ++w.block->launch->effects;
  if (cluster.arrived >= cluster.live_threads) EndPhase(cluster);
}

void ThreadsLeft(Warp& w, uint32_t count) {
  Block& block = *w.block;
  Cluster& cluster = *block.cluster;
  cluster.live_threads -= count;
  if (cluster.arrived > 0 && cluster.arrived >= cluster.live_threads) EndPhase(cluster);
  ++block.launch->effects;
  if (w.live != 0) return;
  for (uint32_t id = 0; id < 16; ++id) {
    const Barrier& barrier = block.barriers[id];
    if (barrier.open && barrier.expected == 0 && barrier.arrived >= LiveThreads(block))
      OpenBarrier(block, id);
  }
}

int BlocksPerMultiprocessor(const ptx::Kernel& kernel, int threads, uint64_t dynamic_shared) {
  const uint64_t shared = DynamicShared(kernel) + dynamic_shared;
  int blocks = kThreadsPerMultiprocessor / std::max(32, (threads + 31) / 32 * 32);
  blocks = std::min(blocks, 32);
  blocks = std::min<int>(
      blocks, static_cast<int>(kSharedPerMultiprocessor / std::max<uint64_t>(shared, 1)));
  // Registers are ptxas's business; a kernel that promises blocks keeps its promise, another is
  // taken at 128 a thread.
  const int by_registers = std::max(kernel.min_blocks, 65536 / (128 * std::max(32, threads)));
  return std::max(0, std::min(blocks, by_registers));
}

bool Execute(const Program& program,
             const LaunchShape& shape,
             char* parameters,
             int device,
             const Note* note,
             const std::function<void()>& idle) {
  Launch launch;
  launch.program = &program;
  launch.shape = shape;
  launch.parameters = parameters;
  launch.device = device;
  launch.note = note;
  launch.random = TheOptions().seed * 0x9E3779B97F4A7C15u;
  const uint64_t cluster_blocks = uint64_t{shape.cluster[0]} * shape.cluster[1] * shape.cluster[2];
  const uint64_t clusters =
      uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2] / cluster_blocks;
  const int threads = static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]);
  const uint64_t most =
      static_cast<uint64_t>(
          std::max(1, BlocksPerMultiprocessor(*program.kernel, threads, shape.dynamic_shared))) *
      TheOptions().multiprocessors;
  uint64_t started = 0;
  int idle_passes = 0;
  while (started < clusters || !launch.blocks.empty()) {
    bool further = false;
    bool ended = false;
    for (size_t n = 0; n < launch.blocks.size(); ++n) {
      Block& block = *launch.blocks[n];
      if (!block.done()) further |= RunBlock(block);
      ended |= block.done();
    }
    if (ended) {
      // A block's shared memory lives as long as its cluster.
      std::erase_if(launch.blocks, [](const std::unique_ptr<Block>& block) {
        return std::all_of(block->cluster->blocks.begin(), block->cluster->blocks.end(),
                           [](const Block* one) { return one == nullptr || one->done(); }) &&
               [&block] {
                 for (Block*& one : block->cluster->blocks)
                   if (one == block.get()) one = nullptr;
                 return true;
               }();
      });
    }
    if (further) {
      idle_passes = 0;
      continue;
    }
    if (started < clusters &&
        launch.blocks.size() + cluster_blocks <= std::max(most, cluster_blocks)) {
      StartCluster(launch, started++);
      continue;
    }
    idle();
    if (++idle_passes > TheOptions().idle_passes) Deadlock(launch);
  }
  if (TheOptions().verbose > 1)
    std::fprintf(stderr, "EMULATOR:   %.3f million warp instructions\n",
                 static_cast<double>(launch.executed) * 1e-6);
  HoldEnd(launch);
  return launch.let_next_start;
}

std::string Demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text != nullptr ? text : name;
  std::free(text);
  const size_t parameters = result.rfind('(');
  return parameters == std::string::npos || parameters == 0 ? result : result.substr(0, parameters);
}

std::string Place(const Program& program, const Inst& i) {
  const auto file = program.module->files.find(i.source->file);
  std::string name = file == program.module->files.end() ? "?" : file->second;
  return name + ":" + std::to_string(i.source->line) + " (" + i.source->opcode + ")";
}

void Die(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "EMULATOR: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(3);
}

void Warn(const Warp& w, const Inst& i, const std::string& what) {
  if (TheOptions().strict) Fault(w, i, what);
  static auto* said = new std::set<const ptx::Instruction*>;
  if (!said->insert(i.source).second) return;
  std::fprintf(stderr, "EMULATOR warns: %s\n  kernel %s, block (%u, %u, %u), warp %d, at %s\n",
               what.c_str(), Demangled(w.program->kernel->name).c_str(), w.block->id[0],
               w.block->id[1], w.block->id[2], w.index, Place(*w.program, i).c_str());
}

void Fault(const Warp& w, const Inst& i, const std::string& what) {
  char where[200];
  std::snprintf(where, sizeof where, "block (%u, %u, %u), threads %d to %d, lanes %08x",
                w.block->id[0], w.block->id[1], w.block->id[2], w.index * 32, w.index * 32 + 31,
                w.active);
  Die(what + "\n  kernel " + Demangled(w.program->kernel->name) + "\n  " + where + "\n  at " +
      Place(*w.program, i));
}

}  // namespace emu
