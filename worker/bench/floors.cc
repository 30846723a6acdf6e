#include "worker/bench/floors.h"

#include "absl/strings/str_format.h"

namespace nsa::bench {
namespace {

std::optional<double> UnlessZero(double work) {
  return work == 0 ? std::nullopt : std::optional(work);
}

std::string Work(const std::optional<double>& work, const std::string& of) {
  return work ? absl::StrFormat("%.3f %s", *work / 1e9, of) : "-";
}

}  // namespace

std::optional<double> Floor::Seconds() const {
  const std::optional<double>& work = executed ? executed : needed;
  return work ? std::optional(*work / in_a_second) : std::nullopt;
}

Floors FloorsOf(double flops, double bytes, const std::optional<Executed>& executed,
                const Ceilings& ceilings) {
  Floors floors = {
      {"matrix unit", "GFLOP", UnlessZero(flops), {}, ceilings.gemm_flops},
      {"exponentials", "G", {}, {}, kExponentialsInCycle * ceilings.cycles},
      {"issue", "G", {}, {}, kInstructionsInCycle * ceilings.cycles},
      {"shared memory", "GB", {}, {}, kSharedBytesInCycle * ceilings.cycles},
      {"memory", "GB", UnlessZero(bytes), {}, ceilings.copy_bytes},
  };
  if (!executed) return floors;
  floors[0].executed = executed->flops;
  floors[1].executed = executed->exponentials;
  floors[2].executed = executed->instructions;
  floors[3].executed = executed->shared_bytes;
  // Besides what is needed nothing but partial rows is derived.
  if (executed->partial_bytes > 0) floors[4].executed = bytes + executed->partial_bytes;
  return floors;
}

std::string FormatFloors(const Floors& floors, double seconds) {
  std::string out = absl::StrFormat("    %-14s %16s %16s %9s %6s\n", "floor of", "needed",
                                    "executed", "ms", "share");
  for (const Floor& floor : floors) {
    const std::optional<double> least = floor.Seconds();
    absl::StrAppendFormat(&out, "    %-14s %16s %16s %9s %6s\n", floor.unit,
                          Work(floor.needed, floor.of), Work(floor.executed, floor.of),
                          least ? absl::StrFormat("%.3f", *least * 1e3) : "-",
                          least ? absl::StrFormat("%.0f %%", 100 * *least / seconds) : "-");
  }
  return out;
}

}  // namespace nsa::bench
