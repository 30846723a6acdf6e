// Preflight checks a job before it runs, with a table of small rules. The same rules are used by
// `nsactl validate`, at submit and before every launch. docs/preflight.md lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/job/load.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/preflight.pb.h"

namespace nsa {

// The machine that would run the job, as far as it is known.
struct MachineView {
  struct Gpu {
    std::string name;
    int64_t memory_bytes = 0;
    int64_t free_bytes = 0;
    int32_t compute_capability = 0;
    double link_bytes_per_second = 0;  // to other GPUs of the machine; 0: not known
    bool nvlink = false;               // that is NVLink, not PCI Express
  };
  std::vector<Gpu> gpus;                // the healthy ones
  std::vector<std::string> gpu_faults;  // one text for each GPU that is taken out
  int32_t cpu_slots = 0;
  int32_t cores = 0;
  int64_t memory_bytes = 0;
  int64_t free_memory_bytes = 0;
  bool cuda_worker = false;
  std::string cuda_problem;
  std::string driver_version;  // "580.159", or empty when it is not known
  // Folder of the forward-compatibility package that CUDA workers use; empty: none.
  std::string cuda_compat_path;
  // Where ranks on this machine wait for ranks on others (agent.yaml); empty: not set.
  std::string rank_address;
  // Speed of the network interface that has this address; 0: not known.
  int64_t rank_link_bits_per_second = 0;
  // Ranks run there as the job's Unix user, not as the user of this process.
  bool unix_users = false;
  // Why no rank is placed on it at present: "gpu-3 is drained by alice (new kernel)"; empty: ranks
  // may be placed.
  std::string cordon;
};

// Rules about the machines of a job with several. Their waivers count when machines are chosen,
// too.
inline constexpr std::string_view kMachinesDifferRule = "MACHINES_DIFFER";
inline constexpr std::string_view kClocksDifferRule = "CLOCKS_DIFFER";

// Why machines cannot run ranks of one job together.
struct MachineDifferences {
  std::string text;  // "gpu-02: NCCL 2.27.3, gpu-01 has 2.28.3"; empty: they can
  std::string fix;   // what to do about it
};

// What preflight may use besides the spec.
struct PreflightContext {
  // Null if no machine is known: the rules about a machine are then skipped.
  const MachineView* machine = nullptr;
  // Whether to read data files and out_dir on this machine's disks.
  bool check_files = false;
  // The id of the job, or empty if it has none yet. An out_dir may belong to this job only. A job
  // with an id is about to start, so its memory must be free now, and its length, which was judged
  // at submit, does not make it production. A job without one may wait, so the machine's total
  // memory counts.
  std::string job_id;
  // Ranks of the job ran before, so that it continues from its own checkpoints whatever
  // restart.resume is.
  bool restarted = false;
  // Called while large files are read. If it returns true, nobody needs the report any more:
  // Preflight() then returns early, and the report must not be used. Null: never abandoned.
  std::function<bool()> abandoned;
  // The cluster managers that the coordinator is configured for. Null: not known.
  const std::vector<std::string>* provisioners = nullptr;
  // The names of the coordinator's notices. Null: not known.
  const std::vector<std::string>* notices = nullptr;
  // OK if the job may wait for the one that this names, else InvalidArgument `problem; fix`. Null:
  // not known.
  std::function<absl::Status(const std::string& job)> awaited;
  // Why no resources.nodes of the machines that would suit the job, or not all of those that it was
  // placed on, have the same programs; and if they have, why their clocks do not agree.
  MachineDifferences programs_differ;
  MachineDifferences clocks_differ;
  // Which of resources.require no ready machine has, and what they have; empty: one has it all.
  std::string unmet;
  // The job has a Unix user: a machine that is not known yet may run its ranks as that user.
  bool has_unix_user = false;
  // The bytes that an ordinary user may still write below a folder that exists, or nothing if that
  // cannot be found out. Null: asks this machine's file system.
  std::function<std::optional<int64_t>(const std::string& folder)> free_disk_bytes;
};

// Runs every rule. Fills in the defaults of `spec` in the report's copy. `device: auto` is judged
// as cuda if the machine has a GPU and a CUDA worker; without a machine, if the job has bf16, or no
// precision and more than one rank. Findings are ordered by severity (errors first), then by their
// order in the rule table. A waived finding keeps its severity and carries the reason of the
// waiver, but does not refuse the job. The rule table says which rules can be waived.
v1::PreflightReport Preflight(const v1::JobSpec& spec, const PreflightContext& context);

// InvalidArgument `field: problem; fix` if a size of the spec, with its defaults filled in, is so
// far out of range that nothing may be calculated or built from it. For specs that come from
// elsewhere than a submit, e.g. out of a checkpoint.
absl::Status CheckSizes(const v1::JobSpec& spec);

// Adds the line and column in the job file to every finding. If the file lacks the field, it is the
// place of the nearest enclosing section, or of the first key.
void AddPlaces(const SourceMap& places, v1::PreflightReport* report);

// Adds a warning, rule LEGACY_KEY, for every key of the Python system that the file contains.
void AddLegacyKeys(const LoadResult& source, v1::PreflightReport* report);

// The report as text: each finding as `file:line:column: severity RULE: field: problem; fix`, then
// the table of estimates, then whether the job is accepted.
std::string FormatReport(const v1::PreflightReport& report, const std::string& file);

// Whether a finding of a rule may pass later although nobody changes the job.
enum class MayPass : uint8_t {
  kNo,                // no: the job, or the machine's hardware or software, must change
  kYes,               // yes: disks are emptied, volumes are mounted, GPUs are given back or found
  kOnceMemoryIsFree,  // yes, if the whole memory of the machine is enough for the job
};

// Whether `finding`, which refused this job on this machine, may pass later (see MayPass).
bool MayPassLater(const v1::Finding& finding, const v1::JobSpec& spec, const MachineView& machine);

// All rules, for documentation and tests.
struct RuleInfo {
  std::string id;
  std::string summary;
  bool waivable = true;
  MayPass may_pass = MayPass::kNo;
};
std::vector<RuleInfo> PreflightRules();

}  // namespace nsa
