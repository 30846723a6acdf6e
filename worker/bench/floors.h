// The floors of a kernel's time: how long each unit of the GPU takes for its work at the unit's
// ceiling. The largest is a floor of the measured time; no floor says how well units overlap. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "worker/bench/budget.h"

namespace nsa::bench {

// What the GPU can do (timing.h measures it).
struct Ceilings {
  double gemm_flops = 0;            // per second: bf16, 8192³, random data
  double copy_bytes = 0;            // per second, read + written
  double cycles = 0;                // per second, of all multiprocessors at the highest clock
  double launch_seconds = 0;        // per launch of an operation that does almost nothing
  double graph_launch_seconds = 0;  // the same inside a CUDA graph
};

// What a multiprocessor does in a cycle, on an A100 and on Hopper (CUDA's programming guide,
// "Arithmetic Instructions" and "Shared Memory" of compute capability 8.0 and 9.0).
inline constexpr double kExponentialsInCycle = 16;
inline constexpr double kInstructionsInCycle = 4;  // a warp's each, one for each scheduler
inline constexpr double kSharedBytesInCycle = 128;

struct Floor {
  std::string unit;                        // of the GPU
  std::string of;                          // unit of the work in billions: "GFLOP", "GB"
  std::optional<double> needed, executed;  // work; empty where it is not derived
  double in_a_second = 0;                  // work at the ceiling

  // What takes the unit so long: what is executed, or at least what is needed.
  std::optional<double> Seconds() const;
};
using Floors = std::vector<Floor>;

// The floors of the matrix unit, the exponentials, the issue of instructions, shared memory and
// memory. `flops` and `bytes` are what the mathematics needs; 0: not derived.
Floors FloorsOf(double flops, double bytes, const std::optional<Executed>& executed,
                const Ceilings& ceilings);

// A table, one line for each floor, with its share of the measured `seconds`; "-" where a number is
// not derived.
std::string FormatFloors(const Floors& floors, double seconds);

}  // namespace nsa::bench
