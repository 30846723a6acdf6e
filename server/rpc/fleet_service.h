// The service for agents: a heartbeat reports what runs, and its reply says what should run. It is
// registered only after the store has been read, because an empty reply would end every worker.
//
// Nobody is believed for a name. A caller speaks for the node whose secret it sends; over the unix
// socket, without a secret that is known, for a node that has none. Records and logs are taken from
// the node that ran the rank in that generation.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/base/reason.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "server/act/dump_broker.h"
#include "server/act/profile/profile_broker.h"
#include "server/act/unknown_workers.h"
#include "server/rpc/call.h"
#include "server/rpc/message_limit.h"
#include "server/store/access_store.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"
#include "server/store/node/node_store.h"
#include "server/watch/change_hub.h"

namespace nsa::server {

class FleetService final : public v1::FleetService::CallbackService {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    AccessStore& access;
    Fleet& fleet;
    const NodeStore& nodes;
    LogStore& logs;
    DumpBroker& dumps;
    ProfileBroker& profiles;
    ChangeHub& hub;
    const CallRules& rules;
    const Clock& clock;
    std::function<void()> on_heartbeat;  // wakes the reconciler
    // Called with new records of the job's current generation.
    std::function<void(const v1::Job& job, int32_t rank,
                       const std::vector<v1::WorkerRecord>& records)>
        recorded;
    std::string epoch;
    std::vector<std::string> allowed_urls;             // for workers; see WorkerAssignment
    std::vector<std::filesystem::path> allowed_roots;  // for workers too
  };
  explicit FleetService(Parts parts);

  // The work behind the calls, for tests without gRPC.
  absl::StatusOr<v1::JoinResponse> Admit(const v1::JoinRequest& request, const Caller& caller);
  absl::StatusOr<v1::HeartbeatResponse> Answer(const v1::HeartbeatRequest& request,
                                               const Caller& caller);
  absl::StatusOr<v1::ReportRecordsResponse> Take(const v1::ReportRecordsRequest& request,
                                                 const Caller& caller);
  absl::StatusOr<v1::ReportDumpResponse> TakeDump(const v1::ReportDumpRequest& request,
                                                  const Caller& caller);
  absl::StatusOr<v1::ReportProfileResponse> TakeProfile(const v1::ReportProfileRequest& request,
                                                        const Caller& caller);
  // An event about the log of a rank.
  void NoteLog(const v1::ReportLogRequest& request, Reason reason, const std::string& text);
  absl::StatusOr<v1::ReportLogResponse> TakeLog(const v1::ReportLogRequest& request,
                                                const Caller& caller);

 private:
  // NotFound when the allocation that the node says it belongs to is over: its agent then ends
  // (worker/agent/). PermissionDenied when the node has not the name of one of its machines.
  absl::Status CheckAllocation(const v1::NodeInfo& node) const;
  // PermissionDenied for another node's agent, Unauthenticated for a caller without the secret that
  // the node has.
  absl::Status CheckSpeaksFor(const Caller& caller, const std::string& node) const;
  // The same for the node on which this rank ran.
  absl::Status CheckRan(const Caller& caller, const v1::StoredJob& job, int64_t generation,
                        int32_t rank) const;
  // The job with this id or name; of one that has not run on its node an agent with a secret learns
  // no more than of one that there is not: NotFound.
  absl::StatusOr<JobPtr> FindFor(const Caller& caller, const std::string& job) const;

  // What the machine has to do, within the bytes that one answer has.
  void AddDesired(const v1::HeartbeatRequest& request, v1::HeartbeatResponse* response);

  // Aborted for a worker that was started under another store: what it has written is for that one.
  absl::Status CheckStore(const std::string& store_id) const;

  Parts parts_;
  UnknownWorkers unknown_;
  RequestGate gate_;
};

}  // namespace nsa::server
