// The run folders in an agent's state folder (common/run/run_dir.h): made, handed over to the Unix
// user of the ranks, found again, removed.
//
// With a user, `<job>/gen-N` and what is above belong to the agent, and other users may only pass
// through. `rank-R` and `rendezvous` belong to the user and are closed to others. The user owns
// nothing else, so what the agent itself remembers of a rank is in `agent-R`.
#pragma once

#include <filesystem>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/run/run_dir.h"
#include "nsa/v1/worker.pb.h"
#include "worker/agent/rank_key.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {

// Makes the folders of a rank with launch.pb and an empty log, and returns the log, open to be
// appended to. With `user` (may be null), what the rank may change belongs to that user when the
// call returns; what an earlier start left there is removed.
absl::StatusOr<Fd> MakeRunFolder(const RunDir& dir, const v1::WorkerLaunch& launch,
                                 const UnixUser* user);

// Puts the address of the rank after `key` where the rank looks for it. NotFound if the rank's
// meeting folder is not there.
absl::Status WriteNextAddress(const RunDir& dir, const RankKey& key, int next_rank,
                              const std::string& address);

struct RunFolder {
  RankKey key;
  RunDir dir;
};

// All run folders in a state folder.
std::vector<RunFolder> FindRunFolders(const std::filesystem::path& state_dir);

// In a copy of an agent's state folder, the run folders are those of another agent's workers, which
// are left alone: here they count as ended. If the original is gone, as after a move to another
// disk, nobody reads any more what these workers write: they are asked to end with a checkpoint
// (SIGTERM). Does nothing in any other state folder. Call it before `lock`, the lock file of the
// state folder, is taken.
void DisownCopies(const std::filesystem::path& state_dir, const std::filesystem::path& lock);

// Removes a run folder. With the gang's last rank, also removes the gang's folder, and the job's
// when it is then empty. Never follows a link.
void RemoveRunFolder(const RunDir& dir);

}  // namespace nsa::agent
