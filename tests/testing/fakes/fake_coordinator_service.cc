#include "tests/testing/fakes/fake_coordinator_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "server/decide/curve.h"
#include "server/decide/curve_table.h"

namespace nsa {

std::vector<std::string> FakeCoordinatorService::Requests(const std::string& method) {
  MutexLock lock(&mutex_);
  return requests_[method];
}

grpc::Status FakeCoordinatorService::Enter(grpc::ServerContext* context, const std::string& method,
                                           const google::protobuf::Message& request) {
  const absl::Duration end = RealClock().Monotonic() + state().delay;
  while (RealClock().Monotonic() < end && !context->IsCancelled()) {
    absl::SleepFor(absl::Milliseconds(2));
  }
  // Without the lock, because it may wait; a copy, because the test may change it meanwhile.
  if (const auto on_call = state().on_call; on_call) on_call(method, request);
  MutexLock lock(&mutex_);
  requests_[method].push_back(request.ShortDebugString());
  if (!state_.warning.empty()) context->AddTrailingMetadata(kWarningKey, state_.warning);
  if (!state_.token.empty()) {
    const auto sent = context->client_metadata().find("authorization");
    if (sent == context->client_metadata().end() ||
        std::string(sent->second.data(), sent->second.size()) != "Bearer " + state_.token) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "token: missing; give one");
    }
  }
  std::vector<grpc::Status>& failures = state_.failures[method];
  if (failures.empty()) return grpc::Status::OK;
  const grpc::Status next = failures.front();
  failures.erase(failures.begin());
  return next;
}

v1::Job* FakeCoordinatorService::Find(const std::string& name) {
  for (v1::Job& job : state_.jobs) {
    if (job.id() == name || job.name() == name) return &job;
  }
  return nullptr;
}

namespace {

grpc::Status NoSuchJob(const std::string& name) {
  return grpc::Status(grpc::StatusCode::NOT_FOUND,
                      absl::StrCat("job: '", name, "' is not known; see `nsactl list`"));
}

}  // namespace

grpc::Status FakeCoordinatorService::SubmitJob(grpc::ServerContext* context,
                                               const v1::SubmitJobRequest* request,
                                               v1::SubmitJobResponse* response) {
  if (auto status = Enter(context, "SubmitJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  *response->mutable_report() = state_.report;
  if (request->validate_only()) return grpc::Status::OK;
  if (!state_.report.accepted()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "job: refused by preflight");
  }
  v1::Job job = state_.jobs.empty() ? v1::Job() : state_.jobs.front();
  job.set_name(request->spec().name());
  *job.mutable_spec() = request->spec();
  *response->mutable_job() = job;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::GetJob(grpc::ServerContext* context,
                                            const v1::GetJobRequest* request,
                                            v1::GetJobResponse* response) {
  if (auto status = Enter(context, "GetJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  const v1::Job* job = Find(request->job());
  if (job == nullptr) return NoSuchJob(request->job());
  *response->mutable_job() = *job;
  if (job->id() != request->job()) {
    response->set_namesakes(
        static_cast<int32_t>(std::ranges::count(state_.jobs, request->job(), &v1::Job::name)) - 1);
  }
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::ListJobs(grpc::ServerContext* context,
                                              const v1::ListJobsRequest* request,
                                              v1::ListJobsResponse* response) {
  if (auto status = Enter(context, "ListJobs", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  const size_t first = request->page_token().empty() ? 0 : std::stoul(request->page_token());
  const size_t last = std::min(state_.jobs.size(), first + request->page_size());
  for (size_t i = first; i < last; ++i) {
    const auto& states = request->states();
    const bool wanted = states.empty() || std::find(states.begin(), states.end(),
                                                    state_.jobs[i].state()) != states.end();
    if (wanted) *response->add_jobs() = state_.jobs[i];
  }
  if (last < state_.jobs.size()) response->set_next_page_token(absl::StrCat(last));
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::WatchJob(grpc::ServerContext* context,
                                              const v1::WatchJobRequest* request,
                                              grpc::ServerWriter<v1::WatchJobResponse>* writer) {
  if (auto status = Enter(context, "WatchJob", *request); !status.ok()) return status;
  while (true) {
    v1::WatchJobResponse response;
    {
      MutexLock lock(&mutex_);
      if (watched_ == state_.watch.size()) break;
      *response.mutable_job() = state_.watch[watched_++];
    }
    if (response.job().id().empty()) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed");
    }
    writer->Write(response);
    if (response.job().state() >= v1::Job::STATE_SUCCEEDED) return grpc::Status::OK;
  }
  // The job is still running: nothing more is sent until the caller leaves.
  while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(2));
  return grpc::Status::CANCELLED;
}

grpc::Status FakeCoordinatorService::WatchEvents(
    grpc::ServerContext* context, const v1::WatchEventsRequest* request,
    grpc::ServerWriter<v1::WatchEventsResponse>* writer) {
  const grpc::Status status = Enter(context, "WatchEvents", *request);
  MutexLock lock(&mutex_);
  for (const v1::JobEvent& event : state_.events) {
    if (event.sequence() <= request->after_sequence()) continue;
    if (!request->job().empty() && event.job_id() != request->job()) continue;
    v1::WatchEventsResponse response;
    *response.mutable_event() = event;
    writer->Write(response);
    if (!status.ok()) return status;  // after the first one
  }
  return status;
}

grpc::Status FakeCoordinatorService::WatchRecords(
    grpc::ServerContext* context, const v1::WatchRecordsRequest* request,
    grpc::ServerWriter<v1::WatchRecordsResponse>* writer) {
  const grpc::Status status = Enter(context, "WatchRecords", *request);
  MutexLock lock(&mutex_);
  const size_t count = state_.records.size();
  const size_t tail = request->tail() > 0 ? request->tail() : count;
  for (size_t i = count > tail ? count - tail : 0; i < count; ++i) {
    const v1::WatchRecordsResponse& record = state_.records[i];
    if (record.position() <= request->after_position()) continue;
    if (request->rank() >= 0 && record.rank() != request->rank()) continue;
    writer->Write(record);
    if (!status.ok()) return status;
  }
  return status;
}

// Made of the records of rank 0, as a coordinator does it.
grpc::Status FakeCoordinatorService::GetCurves(grpc::ServerContext* context,
                                               const v1::GetCurvesRequest* request,
                                               v1::GetCurvesResponse* response) {
  if (auto status = Enter(context, "GetCurves", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  const v1::Job* job = Find(request->job());
  if (job == nullptr) return NoSuchJob(request->job());
  response->set_job_id(job->id());
  std::vector<v1::CurveBucket> steps;
  std::vector<v1::CurveBucket> layers;
  std::vector<v1::WorkerRecord> evals;
  for (const v1::WatchRecordsResponse& sent : state_.records) {
    const v1::WorkerRecord& record = sent.record();
    if (sent.rank() != 0) continue;
    if (record.has_started()) response->add_start_unix_nanos(record.unix_nanos());
    if (record.has_eval()) evals.push_back(record);
    if (record.has_started() || record.has_sample() || !record.checkpoint().error().empty()) {
      *response->add_marks() = record;
    }
    if (!record.has_step() || record.step().step() < request->from_step()) continue;
    steps.push_back(server::StepBucket(record));
    if (record.step().layers_size() > 0) layers.push_back(server::LayerBucket(record));
  }
  using server::Entries;
  *response->mutable_steps() =
      server::TableOf(steps, server::kStepValues, Entries::kOfStep, request->columns());
  *response->mutable_layers() =
      server::TableOf(layers, server::kLayerValues, Entries::kOfLayers, request->columns());
  *response->mutable_validations() = server::ValidationsOf(evals, evals.size());
  if (!request->marks()) response->clear_marks();
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::StreamLogs(
    grpc::ServerContext* context, const v1::StreamLogsRequest* request,
    grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
  const grpc::Status status = Enter(context, "StreamLogs", *request);
  MutexLock lock(&mutex_);
  for (const v1::StreamLogsResponse& chunk : state_.logs) {
    if (chunk.resume_token() <= request->resume_token()) continue;
    if (request->rank() >= 0 && chunk.rank() != request->rank()) continue;
    writer->Write(chunk);
    if (!status.ok()) return status;
  }
  return status;
}

grpc::Status FakeCoordinatorService::StopJob(grpc::ServerContext* context,
                                             const v1::StopJobRequest* request,
                                             v1::StopJobResponse* response) {
  if (auto status = Enter(context, "StopJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  v1::Job* job = Find(request->job());
  if (job == nullptr) return NoSuchJob(request->job());
  job->set_state(state_.stops_at_once ? v1::Job::STATE_STOPPED : v1::Job::STATE_STOPPING);
  *job->mutable_stop() = request->stop();
  *response->mutable_job() = *job;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::ResumeJob(grpc::ServerContext* context,
                                               const v1::ResumeJobRequest* request,
                                               v1::ResumeJobResponse* response) {
  if (auto status = Enter(context, "ResumeJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  v1::Job* job = Find(request->job());
  if (job == nullptr) return NoSuchJob(request->job());
  job->set_state(v1::Job::STATE_QUEUED);
  *response->mutable_job() = *job;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::DeleteJob(grpc::ServerContext* context,
                                               const v1::DeleteJobRequest* request,
                                               v1::DeleteJobResponse* response) {
  if (auto status = Enter(context, "DeleteJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  const v1::Job* job = Find(request->job());
  if (job == nullptr) return NoSuchJob(request->job());
  response->set_job_id(job->id());
  std::erase_if(state_.jobs, [&](const v1::Job& each) { return each.id() == response->job_id(); });
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::EditJob(grpc::ServerContext* context,
                                             const v1::EditJobRequest* request,
                                             v1::EditJobResponse* response) {
  if (auto status = Enter(context, "EditJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  v1::Job* job = Find(request->job());
  if (job == nullptr) return NoSuchJob(request->job());
  auto& labels = *job->mutable_spec()->mutable_labels();
  for (const auto& [key, value] : request->set_labels()) labels[key] = value;
  for (const std::string& key : request->remove_labels()) labels.erase(key);
  for (const std::string& problem : request->mute()) job->add_mutes()->set_problem(problem);
  if (!request->unmute().empty()) job->clear_mutes();
  *response->mutable_job() = *job;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::DumpStack(grpc::ServerContext* context,
                                               const v1::DumpStackRequest* request,
                                               v1::DumpStackResponse* response) {
  if (auto status = Enter(context, "DumpStack", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (const v1::StackDump& dump : state_.dumps) {
    if (request->rank() < 0 || dump.rank() == request->rank()) *response->add_dumps() = dump;
  }
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::ProfileJob(
    grpc::ServerContext* context, const v1::ProfileJobRequest* request,
    grpc::ServerWriter<v1::ProfileJobResponse>* writer) {
  if (auto status = Enter(context, "ProfileJob", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (const v1::ProfileJobResponse& part : state_.profile) writer->Write(part);
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::ListSavedStacks(grpc::ServerContext* context,
                                                     const v1::ListSavedStacksRequest* request,
                                                     v1::ListSavedStacksResponse* response) {
  if (auto status = Enter(context, "ListSavedStacks", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (const auto& each : state_.saved_stacks) *response->add_saved() = each.saved();
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::GetSavedStacks(grpc::ServerContext* context,
                                                    const v1::GetSavedStacksRequest* request,
                                                    v1::GetSavedStacksResponse* response) {
  if (auto status = Enter(context, "GetSavedStacks", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (const auto& each : state_.saved_stacks) {
    if (request->id() == 0 || each.saved().id() == request->id()) *response = each;
  }
  return response->has_saved() ? grpc::Status::OK
                               : grpc::Status(grpc::StatusCode::NOT_FOUND, "id: not saved");
}

grpc::Status FakeCoordinatorService::ListCheckpoints(grpc::ServerContext* context,
                                                     const v1::ListCheckpointsRequest* request,
                                                     v1::ListCheckpointsResponse* response) {
  if (auto status = Enter(context, "ListCheckpoints", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (const v1::CheckpointInfo& each : state_.checkpoints) *response->add_checkpoints() = each;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::VerifyCheckpoint(grpc::ServerContext* context,
                                                      const v1::VerifyCheckpointRequest* request,
                                                      v1::VerifyCheckpointResponse* response) {
  if (auto status = Enter(context, "VerifyCheckpoint", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  if (!state_.checkpoints.empty()) *response->mutable_checkpoint() = state_.checkpoints.back();
  for (const std::string& problem : state_.checkpoint_problems) response->add_problems(problem);
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::ListUse(grpc::ServerContext* context,
                                             const v1::ListUseRequest* request,
                                             v1::ListUseResponse* response) {
  if (auto status = Enter(context, "ListUse", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  *response = state_.use;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::ListNodes(grpc::ServerContext* context,
                                               const v1::ListNodesRequest* request,
                                               v1::ListNodesResponse* response) {
  if (auto status = Enter(context, "ListNodes", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (v1::Node& node : state_.nodes) {
    if (node.cordon().drain()) Drain(&node);
    *response->add_nodes() = node;
  }
  response->set_local_agent(state_.local_agent);
  return grpc::Status::OK;
}

void FakeCoordinatorService::Drain(v1::Node* node) {
  const bool over = --state_.looks_until_drained < 0;
  for (const std::string& id : node->job_ids()) {
    v1::Job* job = Find(id);
    if (job == nullptr) continue;
    job->set_state(over ? v1::Job::STATE_RUNNING : v1::Job::STATE_RESTARTING);
    job->set_reason(over ? "ALL_RANKS_UP" : "MOVING");
    if (!over) continue;
    job->clear_ranks();
    job->add_ranks()->set_node("elsewhere");
  }
  if (!over) return;
  node->clear_store_id();
  node->clear_job_ids();
  node->clear_cpu_slots_used();
}

v1::Node* FakeCoordinatorService::FindNode(const std::string& name) {
  for (v1::Node& node : state_.nodes) {
    if (node.info().name() == name) return &node;
  }
  return nullptr;
}

grpc::Status FakeCoordinatorService::CordonNode(grpc::ServerContext* context,
                                                const v1::CordonNodeRequest* request,
                                                v1::CordonNodeResponse* response) {
  if (auto status = Enter(context, "CordonNode", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  v1::Node* node = FindNode(request->node());
  if (node == nullptr) return {grpc::StatusCode::NOT_FOUND, "node: no machine has the name"};
  node->mutable_cordon()->set_drain(request->drain());
  node->mutable_cordon()->set_reason(request->reason());
  node->mutable_cordon()->set_by("local");
  *response->mutable_node() = *node;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::UncordonNode(grpc::ServerContext* context,
                                                  const v1::UncordonNodeRequest* request,
                                                  v1::UncordonNodeResponse* response) {
  if (auto status = Enter(context, "UncordonNode", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  v1::Node* node = FindNode(request->node());
  if (node == nullptr) return {grpc::StatusCode::NOT_FOUND, "node: no machine has the name"};
  node->clear_cordon();
  *response->mutable_node() = *node;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinatorService::GetVersion(grpc::ServerContext* context,
                                                const v1::GetVersionRequest* request,
                                                v1::GetVersionResponse* response) {
  if (auto status = Enter(context, "GetVersion", *request); !status.ok()) return status;
  MutexLock lock(&mutex_);
  response->set_version("9.9.9");
  response->set_revision("abcdef");
  response->set_state_dir("/var/lib/nsa");
  response->set_metrics_address("127.0.0.1:9464");
  return grpc::Status::OK;
}

FakeCoordinator::FakeCoordinator(const std::string& socket_path) : address_("unix:" + socket_path) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(&service_);
  server_ = builder.BuildAndStart();
}

FakeCoordinator::~FakeCoordinator() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

v1::Job DemoJob() {
  v1::Job job;
  job.set_id("jdemo1234567");
  job.set_name("demo");
  job.set_state(v1::Job::STATE_RUNNING);
  job.mutable_spec()->set_name("demo");
  job.mutable_spec()->mutable_resources()->set_gpus(1);
  job.mutable_spec()->mutable_train()->set_out_dir("/data/demo");
  // 2026-11-20T12:00:00Z.
  constexpr int64_t kNoon = 1795176000LL * 1'000'000'000;
  constexpr int64_t kSecond = 1'000'000'000;
  job.set_submit_unix_nanos(kNoon - 3 * 3600 * kSecond);
  job.set_start_unix_nanos(kNoon - 600 * kSecond);
  job.set_generation(2);
  job.set_restarts(1);
  v1::JobProgress& progress = *job.mutable_progress();
  progress.set_step(375);
  progress.set_total_steps(1000);
  progress.set_loss(2.1034);
  progress.set_val_loss(2.2101);
  progress.set_val_step(300);
  progress.set_tokens_per_second(12345);
  progress.set_eta_seconds(320);
  progress.set_checkpoint_step(300);
  progress.set_checkpoint_unix_nanos(kNoon - 41 * kSecond);
  progress.set_total_tokens(3072000);
  progress.set_learning_rate(3e-4);
  progress.set_grad_norm(0.8125);
  v1::RankStatus& rank = *job.add_ranks();
  rank.set_rank(0);
  rank.set_node("box");
  rank.set_pid(4711);
  rank.set_state("RUNNING");
  rank.set_step(375);
  rank.set_phase("forward layer 3");
  return job;
}

}  // namespace nsa
