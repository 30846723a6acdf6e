// The service for agents: what runs comes in, what should run goes out. It is registered only once
// the store has been replayed: an empty answer would end every worker.
#pragma once

#include <functional>
#include <string>

#include "nsa/v1/fleet.grpc.pb.h"
#include "server/call.h"
#include "server/change_hub.h"
#include "server/dump_broker.h"
#include "server/fleet.h"
#include "server/job_store.h"
#include "server/log_store.h"

namespace nsa::server {

class FleetService final : public v1::FleetService::CallbackService {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    Fleet& fleet;
    LogStore& logs;
    DumpBroker& dumps;
    ChangeHub& hub;
    const CallRules& rules;
    std::function<void()> heard;  // wakes the reconciler
    // New records of the job's present generation.
    std::function<void(const v1::Job& job, int32_t rank,
                       const std::vector<v1::WorkerRecord>& records)>
        recorded;
    std::string epoch;
  };
  explicit FleetService(Parts parts) : parts_(std::move(parts)) {}

  using Unary = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  Unary* Heartbeat(Context* context, const v1::HeartbeatRequest* request,
                   v1::HeartbeatResponse* response) override;
  Unary* ReportRecords(Context* context, const v1::ReportRecordsRequest* request,
                       v1::ReportRecordsResponse* response) override;
  Unary* ReportLog(Context* context, const v1::ReportLogRequest* request,
                   v1::ReportLogResponse* response) override;
  Unary* ReportDump(Context* context, const v1::ReportDumpRequest* request,
                    v1::ReportDumpResponse* response) override;

  // The work behind the calls, for tests without gRPC.
  absl::StatusOr<v1::HeartbeatResponse> Answer(const v1::HeartbeatRequest& request);
  absl::StatusOr<v1::ReportRecordsResponse> Take(const v1::ReportRecordsRequest& request);
  absl::StatusOr<v1::ReportLogResponse> TakeLog(const v1::ReportLogRequest& request);

 private:
  Parts parts_;
};

}  // namespace nsa::server
