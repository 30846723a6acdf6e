// Rules about machines that run ranks of one job together.
#include "absl/strings/str_cat.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

Problems MachinesDiffer(const PreflightFacts& facts) {
  const MachineDifferences& differences = facts.context.programs_differ;
  if (differences.text.empty()) return {};
  return {{"resources.nodes",
           absl::StrCat(facts.machines(), " (machines with the same programs): ", differences.text),
           differences.fix}};
}

Problems ClocksDiffer(const PreflightFacts& facts) {
  const MachineDifferences& differences = facts.context.clocks_differ;
  if (differences.text.empty()) return {};
  return {{"resources.nodes",
           absl::StrCat(facts.machines(),
                        " (machines whose clocks agree within 1 s): ", differences.text),
           absl::StrCat(differences.fix, "; until then the job waits in the queue")}};
}

Problems RequireUnmet(const PreflightFacts& facts) {
  const std::string& unmet = facts.context.unmet;
  if (unmet.empty()) return {};
  return {{"resources.require", unmet + ": no machine that is ready has it",
           "correct it, see `nsactl nodes -o wide`, or waive this to wait for such a machine"}};
}

constexpr PreflightRule kGroupRules[] = {
    {kMachinesDifferRule,
     "the machines differ in their worker program, NVIDIA driver, NCCL or GPUs", kError, kError,
     true, kNothing, MachinesDiffer, MayPass::kYes},
    {kClocksDifferRule, "the clocks of the machines differ by more than a second", kWarning,
     kWarning, true, kNothing, ClocksDiffer, MayPass::kYes},
    {"REQUIRE_UNMET", "no machine has what `resources.require` asks for", kError, kError, true,
     kNothing, RequireUnmet, MayPass::kYes},
};

}  // namespace

std::span<const PreflightRule> GroupRules() { return kGroupRules; }

}  // namespace nsa
