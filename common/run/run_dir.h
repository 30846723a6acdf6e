// The run folder, through which an agent and one worker on the same machine communicate. There is
// one folder for each (job, generation, rank). The agent creates it (or a user, for a worker
// without an agent), and it outlives both processes:
//
//   <agent state>/jobs/<job id>/gen-000003/rank-0000/
//     launch.pb       WorkerLaunch, written before the worker starts
//     identity.json   ProcessIdentity of the worker, written by the agent right after starting it
//     journal         WorkerRecords, common/run/journal.h; the worker appends, the agent reads
//     status          status page, common/run/status_page.h; the worker writes, the agent reads
//     control.sock    control socket, common/run/control_socket.h; the worker listens
//     log             the worker's stdout and stderr
//     profile-ID.json.gz   the trace that the ProfileRequest ID asked for
//                     (worker/train/profile/trace.h); the worker writes, the agent reads
//     reported.json   positions up to which the agent has reported journal and log; written by it
//     exit.json       how the process ended, written by the agent
//   <agent state>/jobs/<job id>/gen-000003/rendezvous/    shared by the ranks of this generation
//                                                         that run here (rank_address.h)
//   <agent state>/jobs/<job id>/gen-000003/agent-0000/    if the rank runs as another user than the
//                                                         agent: identity.json, exit.json and
//                                                         reported.json, which the rank's user
//                                                         must not write
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa {

struct RunDir {
  std::filesystem::path path;
  std::filesystem::path notes = {};  // folder of what only the agent writes; empty: path

  static RunDir Of(const std::filesystem::path& agent_state, const std::string& job_id,
                   int64_t generation, int rank) {
    return {GangDir(agent_state, job_id, generation) / absl::StrFormat("rank-%04d", rank)};
  }
  // The same for a rank that runs as another user.
  static RunDir OfAnother(const std::filesystem::path& agent_state, const std::string& job_id,
                          int64_t generation, int rank) {
    return {Of(agent_state, job_id, generation, rank).path,
            GangDir(agent_state, job_id, generation) / absl::StrFormat("agent-%04d", rank)};
  }
  static std::filesystem::path GangDir(const std::filesystem::path& agent_state,
                                       const std::string& job_id, int64_t generation) {
    return agent_state / "jobs" / job_id / absl::StrFormat("gen-%06d", generation);
  }

  std::filesystem::path launch() const { return path / "launch.pb"; }
  std::filesystem::path identity() const { return Notes() / "identity.json"; }
  std::filesystem::path exit() const { return Notes() / "exit.json"; }
  std::filesystem::path journal() const { return path / "journal"; }
  std::filesystem::path status() const { return path / "status"; }
  std::filesystem::path control() const { return path / "control.sock"; }
  std::filesystem::path log() const { return path / "log"; }
  std::filesystem::path reported() const { return Notes() / "reported.json"; }
  const std::filesystem::path& Notes() const { return notes.empty() ? path : notes; }
  std::filesystem::path profile(const std::string& id) const {
    return path / absl::StrCat("profile-", id, ".json.gz");
  }
  std::filesystem::path rendezvous() const { return path.parent_path() / "rendezvous"; }
};

}  // namespace nsa
