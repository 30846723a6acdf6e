// An agent with simulated workers. Like worker/agent it sends heartbeats, makes its workers equal
// to what is desired and reports their records, through functions that the test provides.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/fleet.pb.h"

namespace nsa {

class FakeAgent {
 public:
  struct Wire {
    std::function<absl::StatusOr<v1::HeartbeatResponse>(const v1::HeartbeatRequest&)> heartbeat;
    std::function<absl::StatusOr<v1::ReportRecordsResponse>(const v1::ReportRecordsRequest&)>
        records;
    std::function<absl::StatusOr<v1::ReportDumpResponse>(const v1::ReportDumpRequest&)> dump;
  };

  struct Worker {
    v1::WorkerAssignment assignment;
    v1::WorkerObservation seen;             // what the next heartbeat reports about it
    std::vector<v1::WorkerRecord> records;  // its journal
    size_t sent = 0;
    bool running() const { return seen.state() != v1::WorkerObservation::STATE_EXITED; }
  };
  using Key = std::tuple<std::string, int64_t, int32_t>;  // job, generation, rank

  FakeAgent(std::string name, int cpu_slots, Wire wire)
      : wire_(std::move(wire)), incarnation_(name + "-1") {
    node_.set_name(std::move(name));
    node_.set_cpu_slots(cpu_slots);
    node_.set_cores(4);
    node_.set_memory_bytes(int64_t{64} << 30);
    node_.set_free_memory_bytes(int64_t{60} << 30);
  }

  // One round: sends a heartbeat, starts and ends workers, answers dump requests, reports records.
  absl::Status Beat() {
    v1::HeartbeatRequest request;
    *request.mutable_node() = node_;
    request.set_incarnation(incarnation_);
    request.set_boot_id(boot_id);
    request.set_takes_resume_from_step(takes_resume_from_step);
    if (!workers_.empty()) request.set_store_id(store_id_);
    for (const auto& [key, worker] : workers_) {
      *request.add_workers() = worker.seen;
      // An end is reported only after all records have been.
      if (!worker.running() && worker.sent < worker.records.size()) {
        request.mutable_workers()->rbegin()->set_state(v1::WorkerObservation::STATE_RUNNING);
      }
    }
    const auto response = wire_.heartbeat(request);
    if (!response.ok()) return response.status();
    Converge(*response);
    for (const v1::DumpRequest& dump : response->dumps()) {
      if (answers_dumps && !Answer(dump).ok()) continue;
    }
    for (const v1::ProfileOrder& order : response->profiles()) {
      if (on_profile) on_profile(order);
    }
    return Report();
  }

  absl::Status Report() {
    for (auto& [key, worker] : workers_) {
      if (worker.sent == worker.records.size()) continue;
      v1::ReportRecordsRequest request;
      std::tie(*request.mutable_job_id(), std::ignore, std::ignore) = key;
      request.set_generation(std::get<1>(key));
      request.set_rank(std::get<2>(key));
      request.set_store_id(store_id_);
      request.mutable_records()->Assign(worker.records.begin() + static_cast<long>(worker.sent),
                                        worker.records.end());
      const auto response = wire_.records(request);
      if (absl::IsAborted(response.status())) continue;  // another store: it waits for its own
      if (absl::IsNotFound(response.status()) || absl::IsInvalidArgument(response.status())) {
        worker.sent = worker.records.size();  // refused for good
        continue;
      }
      if (!response.ok()) return response.status();
      worker.sent = static_cast<size_t>(response->next_sequence() - 1);
    }
    return absl::OkStatus();
  }

  // Every running worker does this many steps, and ends after its last step.
  void Train(int64_t steps) {
    for (auto& [key, worker] : workers_) {
      for (int64_t i = 0; i < steps && worker.running(); ++i) Step(&worker);
    }
  }

  void Checkpoint() {
    for (auto& [key, worker] : workers_) {
      if (!worker.running() || worker.assignment.rank() != 0) continue;
      v1::CheckpointRecord* record = Append(&worker)->mutable_checkpoint();
      record->set_step(worker.seen.step());
      record->set_bytes(1'000);
      record->set_write_seconds(0.5);
      checkpoint_step_ = worker.seen.step();
    }
  }

  // The worker of the newest generation of a rank; null when there is none.
  Worker* Find(int32_t rank) {
    Worker* newest = nullptr;
    for (auto& [key, worker] : workers_) {
      if (std::get<2>(key) != rank) continue;
      if (newest == nullptr || newest->assignment.generation() < std::get<1>(key)) newest = &worker;
    }
    return newest;
  }

  void Crash(int32_t rank, int signal) {
    Worker* worker = Find(rank);
    worker->seen.set_state(v1::WorkerObservation::STATE_EXITED);
    worker->seen.set_exit_code(-1);
    worker->seen.set_exit_signal(signal);
  }

  void Finish(int32_t rank, v1::Outcome outcome, const std::string& reason) {
    Finish(Find(rank), outcome, reason);
  }

  const std::map<Key, Worker>& workers() const { return workers_; }
  v1::NodeInfo& node() { return node_; }
  // As if the agent was killed and started again. Its workers keep running.
  void Restart() { incarnation_ += "+"; }

  std::string boot_id;                 // of its machine
  bool takes_resume_from_step = true;  // false: an agent of the previous version
  bool answers_dumps = true;
  std::function<void(const v1::ProfileOrder&)> on_profile;  // set before the first Beat()
  bool starts_workers = true;  // false: as if it were slow to start them
  int dumps = 0;

 private:
  v1::WorkerRecord* Append(Worker* worker) {
    v1::WorkerRecord& record = worker->records.emplace_back();
    record.set_sequence(static_cast<int64_t>(worker->records.size()));
    record.set_unix_nanos(++nanos_);
    return &record;
  }

  void Finish(Worker* worker, v1::Outcome outcome, const std::string& reason) {
    v1::WorkerFinished* finished = Append(worker)->mutable_finished();
    finished->set_outcome(outcome);
    finished->set_reason(reason);
    finished->set_step(worker->seen.step());
    worker->seen.set_state(v1::WorkerObservation::STATE_EXITED);
    worker->seen.set_exit_code(outcome <= v1::OUTCOME_STOPPED ? 0 : 1);
  }

  void Start(const v1::WorkerAssignment& assignment) {
    Worker& worker = workers_[{assignment.job_id(), assignment.generation(), assignment.rank()}];
    worker.assignment = assignment;
    worker.seen.set_job_id(assignment.job_id());
    worker.seen.set_generation(assignment.generation());
    worker.seen.set_rank(assignment.rank());
    worker.seen.set_pid(++pid_);
    worker.seen.set_state(v1::WorkerObservation::STATE_RUNNING);
    worker.seen.set_process_state("R");
    worker.seen.set_phase("forward");
    worker.seen.set_step(checkpoint_step_);
    Append(&worker)->mutable_started()->set_resumed_step(checkpoint_step_);
  }

  void Step(Worker* worker) {
    const v1::JobSpec& spec = worker->assignment.spec();
    const v1::StopRequest& stop = worker->assignment.stop();
    const int64_t step = worker->seen.step() + 1;
    worker->seen.set_step(step);
    v1::StepRecord* record = Append(worker)->mutable_step();
    record->set_step(step);
    record->set_loss(5.0 / static_cast<double>(step));
    record->set_tokens(256);
    record->set_total_tokens(256 * step);
    record->set_tokens_per_second(1'000);
    record->mutable_times()->set_step_seconds(0.256);
    if (stop.mode() == v1::STOP_MODE_AT_STEP && step >= stop.at_step()) {
      const bool exact = step == stop.at_step();
      Finish(worker, v1::OUTCOME_STOPPED, exact ? "STOPPED_AT_STEP" : "STOPPED");
    } else if (step == spec.train().steps()) {
      Finish(worker, v1::OUTCOME_COMPLETED, "COMPLETED");
    }
  }

  void Kill(Worker* worker) {
    worker->seen.set_state(v1::WorkerObservation::STATE_EXITED);
    worker->seen.set_exit_code(-1);
    worker->seen.set_exit_signal(9);
    worker->seen.set_killed_by_agent(true);
  }

  // True if the workers were started under another store than that of the response.
  bool AreOfAnotherStore(const v1::HeartbeatResponse& response) {
    const bool another = response.store_id() != store_id_;
    if (another && !store_id_.empty() && !workers_.empty()) return true;
    store_id_ = response.store_id();
    return false;
  }

  void ObeyUnknown(const v1::HeartbeatResponse& response) {
    for (const v1::UnknownWorker& unknown : response.unknown()) {
      const auto found = workers_.find({unknown.job_id(), unknown.generation(), unknown.rank()});
      if (found == workers_.end() || !found->second.running()) continue;
      *found->second.assignment.mutable_stop() = unknown.stop();
      ObeyStop(&found->second);
    }
  }

  void Converge(const v1::HeartbeatResponse& response) {
    if (AreOfAnotherStore(response)) {
      ObeyUnknown(response);
      if (response.unknown_size() > 0) {
        std::erase_if(workers_, [](const auto& entry) { return !entry.second.running(); });
      }
      return;
    }
    std::set<Key> unknown;
    for (const v1::UnknownWorker& one : response.unknown()) {
      unknown.insert({one.job_id(), one.generation(), one.rank()});
    }
    std::map<Key, const v1::WorkerAssignment*> desired;
    for (const v1::WorkerAssignment& assignment : response.desired()) {
      desired[{assignment.job_id(), assignment.generation(), assignment.rank()}] = &assignment;
    }
    for (auto entry = workers_.begin(); entry != workers_.end();) {
      Worker& worker = entry->second;
      const auto wanted = desired.find(entry->first);
      if (wanted == desired.end() && !worker.running()) {
        entry = workers_.erase(entry);
        continue;
      }
      if (wanted == desired.end()) {
        if (!unknown.contains(entry->first)) Kill(&worker);
      } else {
        worker.assignment = *wanted->second;
        if (worker.running()) ObeyStop(&worker);
      }
      ++entry;
    }
    ObeyUnknown(response);
    for (const auto& [key, assignment] : desired) {
      const bool ends = assignment->stop().mode() == v1::STOP_MODE_NOW;
      if (!workers_.contains(key) && starts_workers && !ends) Start(*assignment);
    }
  }

  void ObeyStop(Worker* worker) {
    const v1::StopMode mode = worker->assignment.stop().mode();
    if (mode == v1::STOP_MODE_NOW) Kill(worker);
    if (mode == v1::STOP_MODE_GRACEFUL && obeys_graceful_stops) {
      Finish(worker, v1::OUTCOME_STOPPED, "STOPPED");
    }
  }

  absl::Status Answer(const v1::DumpRequest& request) {
    ++dumps;
    v1::ReportDumpRequest report;
    report.set_dump_id(request.dump_id());
    report.set_rank(request.rank());
    report.set_node(node_.name());
    report.set_pid(4'711);
    report.set_status("rank status");
    report.set_stacks("#0 main\n");
    return wire_.dump(report).status();
  }

 public:
  bool obeys_graceful_stops = true;

 private:
  const Wire wire_;
  std::string incarnation_;
  std::string store_id_;  // under which the workers were started
  v1::NodeInfo node_;
  std::map<Key, Worker> workers_;
  int64_t pid_ = 1'000;
  int64_t nanos_ = 1'800'000'000'000'000'000;
  int64_t checkpoint_step_ = 0;
};

}  // namespace nsa
