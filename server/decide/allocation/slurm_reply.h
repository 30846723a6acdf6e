// What the commands of Slurm 22.05 and later print. Pure. Whatever cannot be read is left out:
// other jobs of the user may have any name, and a job that is not recognised is never one of ours.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/decide/allocation/allocation.h"

namespace nsa::server {

// The --format of squeue that ReadSqueue() reads, with SLURM_TIME_FORMAT=%s in its environment.
inline constexpr char kSqueueFormat[] = "%i|%T|%e|%j|%r";

// The jobs of squeue's listing whose names are those of allocations.
std::vector<ClusterJob> ReadSqueue(absl::string_view printed);

// The --format of sacct that ReadSacct() reads, with --parsable2 and --noheader.
inline constexpr char kSacctFormat[] = "JobIDRaw,State,JobName";

// The job with this number in sacct's listing; nothing if it is not in there.
std::optional<ClusterJob> ReadSacct(absl::string_view printed, const std::string& number);

// The number that `sbatch --parsable` prints ("17" or "17;cluster"); empty if it is none.
std::string ReadSbatch(absl::string_view printed);

// Whether an error of sbatch may go away although nobody changes the job: the controller cannot be
// reached or has too much to do. Otherwise Slurm has refused the job.
bool SbatchMayPass(absl::string_view sbatch_error);

// An error of a command in one line, without its prefixes ("sbatch: error: ").
std::string ShortError(absl::string_view printed);

}  // namespace nsa::server
