// Follows everything of a job that can be followed, at the same time.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "nsa/v1/coordinator.grpc.pb.h"

namespace nsa::server {

struct Followers {
  Followers(v1::CoordinatorService::Stub* stub, const std::string& id, absl::Duration timeout,
            const std::string& token = "") {
    for (auto& context : contexts) context = MakeContext(timeout, token);
    v1::WatchJobRequest for_job;
    for_job.set_job(id);
    v1::WatchEventsRequest for_events;
    for_events.set_job(id);
    for_events.set_follow(true);
    v1::WatchRecordsRequest for_records;
    for_records.set_job(id);
    for_records.set_rank(-1);
    for_records.set_follow(true);
    v1::StreamLogsRequest for_logs;
    for_logs.set_job(id);
    for_logs.set_rank(-1);
    for_logs.set_follow(true);
    job = stub->WatchJob(contexts[0].get(), for_job);
    events = stub->WatchEvents(contexts[1].get(), for_events);
    records = stub->WatchRecords(contexts[2].get(), for_records);
    logs = stub->StreamLogs(contexts[3].get(), for_logs);
  }

  std::array<std::unique_ptr<grpc::ClientContext>, 4> contexts;
  std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> job;
  std::unique_ptr<grpc::ClientReader<v1::WatchEventsResponse>> events;
  std::unique_ptr<grpc::ClientReader<v1::WatchRecordsResponse>> records;
  std::unique_ptr<grpc::ClientReader<v1::StreamLogsResponse>> logs;
};

}  // namespace nsa::server
