// Preflight: would this job waste its run? A table of small pure rules, the same in `nsactl
// validate --offline`, in SubmitJob{validate_only} and before every launch. README of common/ lists
// the rules.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/job/load.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

// The machine a job would run on, as far as it is known.
struct MachineView {
  struct Gpu {
    std::string name;
    int64_t memory_bytes = 0;
    int64_t free_bytes = 0;
    int32_t compute_capability = 0;
  };
  std::vector<Gpu> gpus;
  int32_t cpu_slots = 0;
  int32_t cores = 0;
  int64_t memory_bytes = 0;
  int64_t free_memory_bytes = 0;
  bool cuda_worker = false;
  std::string cuda_problem;
  std::string driver_version;  // "580.159", or empty when it is not known
};

// What preflight may look at besides the spec. A null member means "not known": rules that need it
// are left out.
struct PreflightContext {
  const MachineView* machine = nullptr;
  // Look at data files and out_dir on this machine's disks.
  bool check_files = false;
  // Job id of an out_dir's owner must be this (empty: the out_dir must have no owner). With an id
  // the job is about to start, and free memory counts; without one it may wait, and all memory
  // does.
  std::string job_id;
  // Asked while large files are read: true when nobody waits for the report any more. It is then
  // cut short, and not to be relied on. Null: never.
  std::function<bool()> abandoned;
};

// Runs every rule. `spec` has its defaults, or gets them in the report's copy. Without a machine,
// device: auto is judged as cuda. Findings are ordered: errors, warnings, information;
// within them by rule table. A finding that is waived keeps its severity and carries the reason; it
// does not refuse. Rules that cannot be waived say so in their table row.
v1::PreflightReport Preflight(const v1::JobSpec& spec, const PreflightContext& context);

// Adds line and column to findings.
void AddPlaces(const SourceMap& places, v1::PreflightReport* report);

// Adds the keys of the Python system that the file had as warnings, rule LEGACY_KEY.
void AddLegacyKeys(const LoadResult& source, v1::PreflightReport* report);

// For people: findings as `file:line:column: severity RULE: field: problem; fix`, then the estimate
// table.
std::string FormatReport(const v1::PreflightReport& report, const std::string& file);

// Ids of all rules, for documentation and tests.
struct RuleInfo {
  std::string id;
  std::string summary;
  bool waivable = true;
};
std::vector<RuleInfo> PreflightRules();

}  // namespace nsa
