// Branches, barriers, exchanges between lanes, special registers, and instructions that need not do
// anything here.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "access.h"
#include "lanes.h"
#include "notes.h"
#include "scheduler.h"

namespace emu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = Operand::Kind;

uint32_t Guarded(const Warp& w, const Inst& i) {
  if (i.guard == 0) return w.active;
  const uint32_t p = w.predicates[(i.guard - 1) / 2];
  return w.active & ((i.guard - 1) % 2 != 0 ? ~p : p);
}

bool Branch(Warp& w, const Inst& i, uint32_t m) {
  const auto target = static_cast<uint32_t>(i.imm);
  const bool back = target < w.pc;
  if (m == w.active) {
    w.pc = target;
  } else if (back) {
    w.groups.push_back({w.pc, w.active & ~m, false});
    w.active = m;
    w.pc = target;
  } else {
    w.groups.push_back({target, m, false});
    w.active &= ~m;
  }
  if (back && --w.budget < 0) {
    w.stop = Stop::kSlice;
    return true;
  }
  return false;
}

bool Exit(Warp& w, const Inst&, uint32_t m) {
  w.live &= ~m;
  w.active &= ~m;
  ThreadsLeft(w, static_cast<uint32_t>(__builtin_popcount(m)));
  if (w.active != 0) return false;
  for (Group& group : w.groups) group.held = false;
  if (NextGroup(w)) return false;
  w.stop = Stop::kDone;
  return true;
}

bool Nothing(Warp&, const Inst&, uint32_t) {
  return false;
}

// Launches run one after the other: what the wait is about is complete.
bool WaitForLaunchesAhead(Warp& w, const Inst&, uint32_t m) {
  MarkWaited(w, m);
  return false;
}

bool LetNextStart(Warp& w, const Inst& i, uint32_t m) {
  HoldStart(w, i, m);
  return false;
}

bool Trap(Warp& w, const Inst& i, uint32_t) {
  Fault(w, i, "trap");
}

bool Sleep(Warp& w, const Inst&, uint32_t) {
  return Spin(w);
}

// v[0] the barrier, v[1] the threads (aux[0]: given); aux[1]: 1 only arrives; aux[2]: 1 and, 2 or,
// 3 popc into v[2] of the predicate v[3] (aux[3]: negated).
bool BlockBarrier(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  const int lane = __builtin_ctz(w.active);
  const uint32_t id = w.At<uint32_t>(i.v[0])[lane];
  const uint32_t count = i.aux[0] != 0 ? w.At<uint32_t>(i.v[1])[lane] : 0;
  if (id >= 16) Fault(w, i, "barrier " + std::to_string(id));
  if (count % 32 != 0) Fault(w, i, "a barrier of " + std::to_string(count) + " threads");
  return ArriveAtBarrier(w, i, id, count, i.aux[1] != 0);
}

bool WarpBarrier(Warp& w, const Inst& i, uint32_t) {
  Converge(w, i, w.At<uint32_t>(i.v[0])[__builtin_ctz(w.active)]);
  return false;
}

bool ClusterArrive(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  if (w.cluster_arrived) Fault(w, i, "arrives at the cluster's barrier twice");
  ArriveAtCluster(w);
  return false;
}

bool ClusterWait(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, kAll)) return false;
  if (!w.cluster_arrived) Fault(w, i, "waits at the cluster's barrier without having arrived");
  if (w.block->cluster->phase == w.cluster_phase) {
    --w.pc;
    return Spin(w);
  }
  w.cluster_arrived = false;
  if (w.block->cluster->waited) MarkWaited(w, kAll);
  return false;
}

// v: result, value, lane, clamp, members; aux[0] mode; aux[1] predicate of the result + 1.
bool Shuffle(Warp& w, const Inst& i, uint32_t) {
  if (!Converge(w, i, w.At<uint32_t>(i.v[4])[__builtin_ctz(w.active)])) return false;
  const uint32_t m = Guarded(w, i);
  uint32_t a[kLanes], r[kLanes], inside = 0;
  std::memcpy(a, w.At<uint32_t>(i.v[1]), sizeof a);
  const uint32_t *b = w.At<uint32_t>(i.v[2]), *c = w.At<uint32_t>(i.v[3]);
  int from[kLanes];
  const uint32_t mode = i.aux[0];
  for (int l = 0; l < kLanes; ++l) {
    const int segment = static_cast<int>(c[l] >> 8 & 31), clamp = static_cast<int>(c[l] & 31),
              by = static_cast<int>(b[l] & 31);
    const int most = (l & segment) | (clamp & ~segment), least = l & segment;
    const int j = mode == 0   ? l - by
                  : mode == 1 ? l + by
                  : mode == 2 ? l ^ by
                              : least | (by & ~segment);
    const bool in = mode == 0 ? j >= most : j <= most;
    from[l] = (in ? j : l) & 31;
    inside |= uint32_t{in} << l;
  }
  for (int l = 0; l < kLanes; ++l)
    r[l] = (w.active >> from[l] & 1) != 0 ? a[from[l]] : 0x7FFFDEADu;  // not here: undefined
  ForLanes(w.At<uint32_t>(i.v[0]), m, [&r](int l) { return r[l]; });
  if (i.aux[1] != 0) w.predicates[i.aux[1] - 1] = (w.predicates[i.aux[1] - 1] & ~m) | (inside & m);
  return false;
}

// v: result, predicate, members; aux[0]: 0 all, 1 any, 2 uni, 3 ballot; aux[1]: the predicate is
// negated.
bool Vote(Warp& w, const Inst& i, uint32_t) {
  const uint32_t members = w.At<uint32_t>(i.v[2])[__builtin_ctz(w.active)];
  if (!Converge(w, i, members)) return false;
  const uint32_t m = Guarded(w, i);
  const uint32_t among = members & w.active;
  const uint32_t votes = (i.aux[2] != 0 ? (i.imm != 0 ? kAll : 0)
                                        : w.predicates[i.v[1]] ^ (i.aux[1] != 0 ? kAll : 0)) &
                         among;
  if (i.aux[0] == 3) {
    ForLanes(w.At<uint32_t>(i.v[0]), m, [votes](int) { return votes; });
    return false;
  }
  const bool result = i.aux[0] == 0   ? votes == among
                      : i.aux[0] == 1 ? votes != 0
                                      : votes == among || votes == 0;
  w.predicates[i.v[0]] = (w.predicates[i.v[0]] & ~m) | (result ? m : 0);
  return false;
}

template <class T>
bool Reduce(Warp& w, const Inst& i, uint32_t) {
  const uint32_t members = w.At<uint32_t>(i.v[2])[__builtin_ctz(w.active)];
  if (!Converge(w, i, members)) return false;
  const uint32_t m = Guarded(w, i);
  const T* a = w.At<T>(i.v[1]);
  bool first = true;
  T r = 0;
  for (uint32_t rest = members & w.active; rest != 0; rest &= rest - 1) {
    const T x = a[__builtin_ctz(rest)];
    if (first) {
      r = x;
      first = false;
      continue;
    }
    switch (i.aux[0]) {
      case 0:
        r = static_cast<T>(static_cast<uint32_t>(r) + static_cast<uint32_t>(x));
        break;
      case 1:
        r = std::min(r, x);
        break;
      case 2:
        r = std::max(r, x);
        break;
      case 3:
        r &= x;
        break;
      case 4:
        r |= x;
        break;
      default:
        r ^= x;
        break;
    }
  }
  ForLanes(w.At<T>(i.v[0]), m, [r](int) { return r; });
  return false;
}

bool MatchAny(Warp& w, const Inst& i, uint32_t) {
  const uint32_t members = w.At<uint32_t>(i.v[2])[__builtin_ctz(w.active)];
  if (!Converge(w, i, members)) return false;
  const uint32_t m = Guarded(w, i);
  uint32_t a[kLanes];
  std::memcpy(a, w.At<uint32_t>(i.v[1]), sizeof a);
  const uint32_t among = members & w.active;
  ForLanes(w.At<uint32_t>(i.v[0]), m, [&](int l) {
    uint32_t same = 0;
    for (int j = 0; j < kLanes; ++j) same |= uint32_t{a[j] == a[l]} << j;
    return same & among;
  });
  return false;
}

bool Elect(Warp& w, const Inst& i, uint32_t) {
  const uint32_t members = w.At<uint32_t>(i.v[2])[__builtin_ctz(w.active)];
  if (!Converge(w, i, members)) return false;
  const uint32_t m = Guarded(w, i);
  const auto leader = static_cast<uint32_t>(__builtin_ctz(members & w.active));
  if (i.v[0] != kAll) ForLanes(w.At<uint32_t>(i.v[0]), m, [leader](int) { return leader; });
  if (i.aux[1] != 0)
    w.predicates[i.aux[1] - 1] = (w.predicates[i.aux[1] - 1] & ~m) | (1u << leader & m);
  return false;
}

bool ActiveMask(Warp& w, const Inst& i, uint32_t m) {
  const uint32_t active = w.active;
  ForLanes(w.At<uint32_t>(i.v[0]), m, [active](int) { return active; });
  return false;
}

// ---- special registers

enum class Special {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLane,
  kWarp,
  kWarps,
  kSm,
  kSms,
  kClusterRank,
  kClusterSize,
  kClusterCtaX,
  kClusterCtaY,
  kClusterCtaZ,
  kClusterNctaX,
  kClusterNctaY,
  kClusterNctaZ,
  kClusterX,
  kClusterY,
  kClusterZ,
  kNclusterX,
  kNclusterY,
  kNclusterZ,
  kClock,
  kTimer,
  kLaneEq,
  kLaneLt,
  kLaneLe,
  kLaneGt,
  kLaneGe,
  kDynamicShared,
  kTotalShared,
  kGrid
};

const std::pair<const char*, Special> kSpecials[] = {
    {"%tid.x", Special::kTidX},
    {"%tid.y", Special::kTidY},
    {"%tid.z", Special::kTidZ},
    {"%ntid.x", Special::kNtidX},
    {"%ntid.y", Special::kNtidY},
    {"%ntid.z", Special::kNtidZ},
    {"%ctaid.x", Special::kCtaidX},
    {"%ctaid.y", Special::kCtaidY},
    {"%ctaid.z", Special::kCtaidZ},
    {"%nctaid.x", Special::kNctaidX},
    {"%nctaid.y", Special::kNctaidY},
    {"%nctaid.z", Special::kNctaidZ},
    {"%laneid", Special::kLane},
    {"%warpid", Special::kWarp},
    {"%nwarpid", Special::kWarps},
    {"%smid", Special::kSm},
    {"%nsmid", Special::kSms},
    {"%cluster_ctarank", Special::kClusterRank},
    {"%cluster_nctarank", Special::kClusterSize},
    {"%cluster_ctaid.x", Special::kClusterCtaX},
    {"%cluster_ctaid.y", Special::kClusterCtaY},
    {"%cluster_ctaid.z", Special::kClusterCtaZ},
    {"%cluster_nctaid.x", Special::kClusterNctaX},
    {"%cluster_nctaid.y", Special::kClusterNctaY},
    {"%cluster_nctaid.z", Special::kClusterNctaZ},
    {"%clusterid.x", Special::kClusterX},
    {"%clusterid.y", Special::kClusterY},
    {"%clusterid.z", Special::kClusterZ},
    {"%nclusterid.x", Special::kNclusterX},
    {"%nclusterid.y", Special::kNclusterY},
    {"%nclusterid.z", Special::kNclusterZ},
    {"%clock", Special::kClock},
    {"%clock64", Special::kClock},
    {"%globaltimer", Special::kTimer},
    {"%globaltimer_lo", Special::kTimer},
    {"%lanemask_eq", Special::kLaneEq},
    {"%lanemask_lt", Special::kLaneLt},
    {"%lanemask_le", Special::kLaneLe},
    {"%lanemask_gt", Special::kLaneGt},
    {"%lanemask_ge", Special::kLaneGe},
    {"%dynamic_smem_size", Special::kDynamicShared},
    {"%total_smem_size", Special::kTotalShared},
    {"%gridid", Special::kGrid}};

uint64_t SpecialValue(const Warp& w, Special which, int lane) {
  const Block& block = *w.block;
  Launch& launch = *block.launch;
  const LaunchShape& s = launch.shape;
  const auto thread = static_cast<uint32_t>(w.index * kLanes + lane);
  const auto pick = [](Special at, Special first) {
    return static_cast<int>(at) - static_cast<int>(first);
  };
  switch (which) {
    case Special::kTidX:
      return thread % s.block[0];
    case Special::kTidY:
      return thread / s.block[0] % s.block[1];
    case Special::kTidZ:
      return thread / s.block[0] / s.block[1];
    case Special::kNtidX:
    case Special::kNtidY:
    case Special::kNtidZ:
      return s.block[pick(which, Special::kNtidX)];
    case Special::kCtaidX:
    case Special::kCtaidY:
    case Special::kCtaidZ:
      return block.id[pick(which, Special::kCtaidX)];
    case Special::kNctaidX:
    case Special::kNctaidY:
    case Special::kNctaidZ:
      return s.grid[pick(which, Special::kNctaidX)];
    case Special::kLane:
      return static_cast<uint64_t>(lane);
    case Special::kWarp:
      return static_cast<uint64_t>(w.index);
    case Special::kWarps:
      return block.warps.size();
    case Special::kSm:
      return (block.id[0] + s.grid[0] * (block.id[1] + s.grid[1] * block.id[2])) %
             static_cast<uint32_t>(TheOptions().multiprocessors);
    case Special::kSms:
      return static_cast<uint64_t>(TheOptions().multiprocessors);
    case Special::kClusterRank:
      return block.rank;
    case Special::kClusterSize:
      return block.cluster->blocks.size();
    case Special::kClusterCtaX:
    case Special::kClusterCtaY:
    case Special::kClusterCtaZ:
      return block.id[pick(which, Special::kClusterCtaX)] %
             s.cluster[pick(which, Special::kClusterCtaX)];
    case Special::kClusterNctaX:
    case Special::kClusterNctaY:
    case Special::kClusterNctaZ:
      return s.cluster[pick(which, Special::kClusterNctaX)];
    case Special::kClusterX:
    case Special::kClusterY:
    case Special::kClusterZ:
      return block.id[pick(which, Special::kClusterX)] / s.cluster[pick(which, Special::kClusterX)];
    case Special::kNclusterX:
    case Special::kNclusterY:
    case Special::kNclusterZ:
      return s.grid[pick(which, Special::kNclusterX)] / s.cluster[pick(which, Special::kNclusterX)];
    case Special::kClock:
      return ++launch.executed;  // moves on between two readings of a turn
    case Special::kTimer:
      return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    case Special::kLaneEq:
      return uint64_t{1} << lane;
    case Special::kLaneLt:
      return (uint64_t{1} << lane) - 1;
    case Special::kLaneLe:
      return (uint64_t{2} << lane) - 1;
    case Special::kLaneGt:
      return static_cast<uint32_t>(~((uint64_t{2} << lane) - 1));
    case Special::kLaneGe:
      return static_cast<uint32_t>(~((uint64_t{1} << lane) - 1));
    case Special::kDynamicShared:
      return s.dynamic_shared;
    case Special::kTotalShared:
      return block.shared_bytes;
    case Special::kGrid:
      return 1;
  }
  return 0;
}

template <class T>
bool ReadSpecial(Warp& w, const Inst& i, uint32_t m) {
  const auto which = static_cast<Special>(i.aux[0]);
  if (which == Special::kTidX &&
      w.block->launch->shape.block[1] * w.block->launch->shape.block[2] == 1) {
    const int first = w.index * kLanes;
    ForLanes(w.At<T>(i.v[0]), m, [first](int l) { return static_cast<T>(first + l); });
    return false;
  }
  if (which >= Special::kNtidX && which <= Special::kTimer && which != Special::kLane) {
    const auto value = static_cast<T>(SpecialValue(w, which, 0));
    ForLanes(w.At<T>(i.v[0]), m, [value](int) { return value; });
    return false;
  }
  T values[kLanes];
  for (int l = 0; l < kLanes; ++l) values[l] = static_cast<T>(SpecialValue(w, which, l));
  ForLanes(w.At<T>(i.v[0]), m, [&values](int l) { return values[l]; });
  return false;
}

// ---- blocks of a cluster

bool MapShared(Warp& w, const Inst& i, uint32_t m) {
  const uint32_t *a = w.At<uint32_t>(i.v[1]), *rank = w.At<uint32_t>(i.v[2]);
  ForLanes(w.At<uint32_t>(i.v[0]), m,
           [=](int l) { return (rank[l] + 1) << 24 | (a[l] & 0xFFFFFF); });
  return false;
}

bool MapGeneric(Warp& w, const Inst& i, uint32_t m) {
  uint64_t* d = w.At<uint64_t>(i.v[0]);
  const uint64_t* a = w.At<uint64_t>(i.v[1]);
  const uint32_t* rank = w.At<uint32_t>(i.v[2]);
  const auto& blocks = w.block->cluster->blocks;
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    if (rank[l] >= blocks.size()) Fault(w, i, "mapa: no block of rank " + std::to_string(rank[l]));
    d[l] = a[l] - reinterpret_cast<uint64_t>(w.block->shared) +
           reinterpret_cast<uint64_t>(blocks[rank[l]]->shared);
  }
  return false;
}

// ---- functions of the runtime

std::string Formatted(const char* format, const char* values) {
  std::string out;
  uint64_t at = 0;
  for (const char* f = format; *f != 0; ++f) {
    if (*f != '%') {
      out += *f;
      continue;
    }
    std::string spec = "%";
    ++f;
    while (*f != 0 && std::string("diouxXeEfFgGaAcspn%").find(*f) == std::string::npos)
      spec += *f++;
    if (*f == 0) break;
    if (*f == '%') {
      out += '%';
      continue;
    }
    const bool wide = spec.find('l') != std::string::npos || spec.find('z') != std::string::npos;
    spec += *f;
    char text[256];
    const bool floating = std::string("eEfFgGaA").find(*f) != std::string::npos;
    const uint64_t bytes = floating || wide || *f == 's' || *f == 'p' ? 8 : 4;
    at = (at + bytes - 1) / bytes * bytes;
    if (floating) {
      double v;
      std::memcpy(&v, values + at, 8);
      std::snprintf(text, sizeof text, spec.c_str(), v);
    } else if (bytes == 8) {
      uint64_t v;
      std::memcpy(&v, values + at, 8);
      std::snprintf(text, sizeof text, spec.c_str(), v);
    } else {
      uint32_t v;
      std::memcpy(&v, values + at, 4);
      std::snprintf(text, sizeof text, spec.c_str(), v);
    }
    at += bytes;
    out += text;
  }
  return out;
}

bool Print(Warp& w, const Inst& i, uint32_t m) {
  for (uint32_t rest = m; rest != 0; rest &= rest - 1) {
    const uint64_t local =
        reinterpret_cast<uint64_t>(w.local) +
        w.program->kernel->local_bytes * static_cast<uint64_t>(__builtin_ctz(rest));
    const char *format, *values;
    std::memcpy(&format, reinterpret_cast<char*>(local + i.v[0]), 8);
    std::memcpy(&values, reinterpret_cast<char*>(local + i.v[1]), 8);
    std::fputs(Formatted(format, values).c_str(), stdout);
  }
  return false;
}

bool Assertion(Warp& w, const Inst& i, uint32_t m) {
  const uint64_t local = reinterpret_cast<uint64_t>(w.local) +
                         w.program->kernel->local_bytes * static_cast<uint64_t>(__builtin_ctz(m));
  const char* what;
  std::memcpy(&what, reinterpret_cast<char*>(local + i.v[0]), 8);
  Fault(w, i, std::string("assertion: ") + what);
}

}  // namespace

bool LowerControl(Lowering& l, const Instruction& s, Inst& inst) {
  const std::string& op = s.words[0];
  const auto& o = s.operands;
  if (op == "bra") {
    inst.run = Branch;
    return true;
  }
  if (op == "ret" || op == "exit") {
    inst.run = Exit;
    return true;
  }
  if (op == "trap" || op == "brkpt") {
    inst.run = Trap;
    return true;
  }
  if (op == "nanosleep") {
    inst.run = Sleep;
    return true;
  }
  if (op == "fence" || op == "membar" || op == "setmaxnreg" || op == "prefetch" ||
      op == "prefetchu" || op == "discard" || op == "applypriority" || op == "pmevent") {
    inst.run = Nothing;
    return true;
  }
  if (op == "griddepcontrol") {
    inst.run = s.words[1] == "wait" ? WaitForLaunchesAhead : LetNextStart;
    return true;
  }
  if (op == "createpolicy") {
    inst.v[0] = l.Place(o.at(0).reg);
    inst.run = [](Warp& w, const Inst& i, uint32_t m) {
      ForLanes(w.At<uint64_t>(i.v[0]), m, [](int) { return uint64_t{0}; });
      return false;
    };
    return true;
  }
  if (op == "mov" && o.at(1).kind == Kind::kSpecial) {
    for (const auto& [name, which] : kSpecials)
      if (o[1].name == name) {
        inst.aux[0] = static_cast<uint32_t>(which);
        inst.v[0] = l.Place(o[0].reg);
        const int width = l.WidthOf(o[0]);
        inst.run = width == 2   ? ReadSpecial<uint16_t>
                   : width == 4 ? ReadSpecial<uint32_t>
                                : ReadSpecial<uint64_t>;
      }
    return inst.run != nullptr;
  }
  if (op == "bar" && s.words[1] == "warp") {
    inst.v[0] = l.Value(o.at(0), 4);
    inst.run = WarpBarrier;
    return true;
  }
  if (op == "barrier" && s.words[1] == "cluster") {
    inst.run = s.words[2] == "arrive" ? ClusterArrive : ClusterWait;
    return true;
  }
  if (op == "bar" || op == "barrier") {
    size_t next = 0;
    if (s.Has("red")) {
      inst.aux[2] = s.Has("and") ? 1 : s.Has("or") ? 2 : 3;
      inst.v[2] = inst.aux[2] == 3 ? l.Place(o.at(0).reg) : l.Predicate(o.at(0));
      inst.v[3] = l.Predicate(o.back());
      inst.aux[3] = o.back().negated;
      next = 1;
    }
    const size_t last = o.size() - (s.Has("red") ? 1 : 0);
    inst.v[0] = l.Value(o.at(next), 4);
    inst.aux[0] = last > next + 1;
    if (inst.aux[0]) inst.v[1] = l.Value(o.at(next + 1), 4);
    inst.aux[1] = s.Has("arrive");
    inst.run = BlockBarrier;
    return true;
  }
  if (op == "shfl") {
    const Operand& to = o.at(0).kind == Kind::kVector ? o[0].parts[0] : o[0];
    if (o[0].kind == Kind::kVector && o[0].parts[1].kind == Kind::kRegister)
      inst.aux[1] = 1 + l.Predicate(o[0].parts[1]);
    inst.v[0] = l.Place(to.reg);
    for (int n = 1; n < 5; ++n) inst.v[n] = l.Value(o.at(n), 4);
    inst.aux[0] = s.Has("up") ? 0 : s.Has("down") ? 1 : s.Has("bfly") ? 2 : 3;
    inst.run = Shuffle;
    return true;
  }
  if (op == "vote") {
    inst.aux[0] = s.Has("all") ? 0 : s.Has("any") ? 1 : s.Has("uni") ? 2 : 3;
    inst.v[0] = inst.aux[0] == 3 ? l.Place(o.at(0).reg) : l.Predicate(o.at(0));
    if (o.at(1).kind == Kind::kImmediate) {
      inst.aux[2] = 1;
      inst.imm = static_cast<int64_t>(o[1].bits);
    } else {
      inst.v[1] = l.Predicate(o[1]);
      inst.aux[1] = o[1].negated;
    }
    inst.v[2] = l.Value(o.at(2), 4);
    inst.run = Vote;
    return true;
  }
  if (op == "redux") {
    static const char* const kNames[] = {"add", "min", "max", "and", "or", "xor"};
    for (uint32_t n = 0; n < 6; ++n)
      if (s.Has(kNames[n])) inst.aux[0] = n;
    inst.v[0] = l.Place(o.at(0).reg);
    inst.v[1] = l.Value(o.at(1), 4);
    inst.v[2] = l.Value(o.at(2), 4);
    inst.run = s.words.back() == "s32" ? Reduce<int32_t> : Reduce<uint32_t>;
    return true;
  }
  if (op == "match" && s.words[1] == "any" && s.words.back() == "b32") {
    inst.v[0] = l.Place(o.at(0).reg);
    inst.v[1] = l.Value(o.at(1), 4);
    inst.v[2] = l.Value(o.at(2), 4);
    inst.run = MatchAny;
    return true;
  }
  if (op == "elect") {
    const Operand& to = o.at(0).kind == Kind::kVector ? o[0].parts[0] : o[0];
    if (o[0].kind == Kind::kVector) inst.aux[1] = 1 + l.Predicate(o[0].parts[1]);
    inst.v[0] = to.kind == Kind::kRegister ? l.Place(to.reg) : kAll;
    inst.v[2] = l.Value(o.at(1), 4);
    inst.run = Elect;
    return true;
  }
  if (op == "activemask") {
    inst.v[0] = l.Place(o.at(0).reg);
    inst.run = ActiveMask;
    return true;
  }
  if (op == "mapa") {
    inst.v[0] = l.Place(o.at(0).reg);
    const bool shared = s.Has("shared::cluster");
    inst.v[1] = l.Value(o.at(1), shared ? 4 : 8);
    inst.v[2] = l.Value(o.at(2), 4);
    if (shared && l.WidthOf(o[0]) != 4) return false;
    inst.run = shared ? MapShared : MapGeneric;
    return true;
  }
  if (op == "extern") {
    for (size_t n = 0; n < o.size() && n < 5; ++n)
      inst.v[n] = static_cast<uint32_t>(o[n].symbol->offset);
    if (s.words[1] == "vprintf") inst.run = Print;
    if (s.words[1] == "__assertfail") inst.run = Assertion;
    return inst.run != nullptr;
  }
  return false;
}

}  // namespace emu
