// What a preflight rule is. Internal to preflight: the table is the concatenation of the functions
// below, each in the file that its comment names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/preflight/preflight.h"

namespace nsa {

// What rules look at. Device and precision are decided.
struct PreflightFacts {
  const v1::JobSpec& spec;
  const PreflightContext& context;
  v1::PreflightPolicy policy;

  bool cuda() const { return spec.runtime().device() == v1::DEVICE_CUDA; }
  const MachineView* machine() const { return context.machine; }
  int64_t ranks() const { return spec.resources().gpus(); }
};

struct Problem {
  std::string field;
  std::string problem;  // what: value (limit)
  std::string fix;
};
using Problems = std::vector<Problem>;

struct PreflightRule {
  std::string_view id;
  std::string_view summary;
  // SEVERITY_UNSPECIFIED: the rule is not looked at under this policy.
  v1::Severity production;
  v1::Severity experiment;
  bool waivable;
  // What the rule has to do with the sizes (of the model, the batch and the ranks).
  //   kNothing      it does not calculate with them.
  //   kSizes        it calculates with them, so it runs only when they are in order.
  //   kGuardsSizes  it checks them: a problem that it finds stops the kSizes rules and the
  //   estimate,
  //                 which would otherwise divide by zero or overflow.
  enum Needs { kNothing, kSizes, kGuardsSizes } needs;
  Problems (*check)(const PreflightFacts& facts);
};

std::span<const PreflightRule> RangeRules();    // range_rules.cc: every number within limits
std::span<const PreflightRule> ShapeRules();    // shape_rules.cc: model, attention, batch
std::span<const PreflightRule> RunRules();      // run_rules.cc: precision, checkpoints, guards
std::span<const PreflightRule> DataRules();     // data_rules.cc: data files, validation
std::span<const PreflightRule> MachineRules();  // machine_rules.cc: GPUs, memory, disk, out_dir
std::span<const PreflightRule> NameRules();     // name_rules.cc: names, paths, waivers

// All of them, in the order of the README's table.
std::vector<PreflightRule> AllRules();

// Expected tokens a second of the job on its machine; on an A100, or on as many cores as there are
// ranks, when the machine is not known. Needs sizes in order.
double ExpectedSpeed(const PreflightFacts& facts);

// "12,345,678".
std::string Grouped(int64_t number);

// "42 s", "12 min", "2.2 h", "3.0 days".
std::string Duration(double seconds);

// "1.25 GiB".
std::string Bytes(double bytes);

}  // namespace nsa
