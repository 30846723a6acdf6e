// A coordinator for tests of the agent: FleetService on a unix socket, in this process. It asks for
// the workers that the test sets, keeps what agents report, and checks that no record or log byte
// is lost or sent in a way that would store it twice.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "tests/testing/within.h"

namespace nsa {

// Thread-safe.
class FakeCoordinator final : public v1::FleetService::Service {
 public:
  using Key = std::tuple<std::string, int64_t, int>;  // job, generation, rank

  explicit FakeCoordinator(std::filesystem::path socket) : socket_(std::move(socket)) { Start(); }
  ~FakeCoordinator() override { Stop(); }

  std::string address() const { return "unix:" + socket_.string(); }

  // Stop() and Start() act like a process that ends and a new one: what was stored stays.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }
  void Start() {
    std::error_code error;
    std::filesystem::remove(socket_, error);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    const MutexLock lock(&mutex_);
    ++epoch_;
    server_ = builder.BuildAndStart();
  }

  void Want(const v1::WorkerAssignment& assignment) {
    const MutexLock lock(&mutex_);
    desired_[KeyOf(assignment)] = assignment;
  }
  void Unwant(const Key& key) {
    const MutexLock lock(&mutex_);
    desired_.erase(key);
  }
  void SetStop(const Key& key, v1::StopMode mode, int64_t at_step = 0) {
    const MutexLock lock(&mutex_);
    desired_[key].mutable_stop()->set_mode(mode);
    desired_[key].mutable_stop()->set_at_step(at_step);
  }
  void WantDump(const std::string& id, const Key& key) {
    const MutexLock lock(&mutex_);
    v1::DumpRequest& dump = wanted_dumps_[id];
    dump.set_dump_id(id);
    dump.set_job_id(std::get<0>(key));
    dump.set_generation(std::get<1>(key));
    dump.set_rank(std::get<2>(key));
  }
  void WantProfile(const std::string& id, const Key& key, int32_t steps) {
    const MutexLock lock(&mutex_);
    v1::ProfileOrder& order = wanted_profiles_[id];
    order.set_profile_id(id);
    order.set_job_id(std::get<0>(key));
    order.set_generation(std::get<1>(key));
    order.set_rank(std::get<2>(key));
    order.set_steps(steps);
  }
  void UnwantProfile(const std::string& id) {
    const MutexLock lock(&mutex_);
    wanted_profiles_.erase(id);
  }
  // What came of a profile.
  struct ProfileReport {
    std::string data;
    std::string error;
    int signs = 0;    // of life
    int refused = 0;  // parts, which each have to come twice
    bool complete = false;
  };
  ProfileReport ProfileOf(const std::string& id) {
    const MutexLock lock(&mutex_);
    return profiles_[id];
  }
  // While set, records are refused with this code.
  void RefuseRecords(grpc::StatusCode code) {
    const MutexLock lock(&mutex_);
    refuse_records_ = code;
  }
  // While this is an error, every report of a log is answered with it.
  void RefuseLog(const grpc::Status& status) {
    const MutexLock lock(&mutex_);
    refuse_log_ = status;
  }
  // Accepts at most this many new records of each report.
  void TakeAtMost(int records) {
    const MutexLock lock(&mutex_);
    take_at_most_ = records;
  }
  // Forgets the records from this sequence number on, like a store that was restored from a backup.
  void ForgetRecordsFrom(const Key& key, int64_t sequence) {
    const MutexLock lock(&mutex_);
    records_[key].resize(static_cast<size_t>(sequence - 1));
  }

  // Waits until `holds` is true; returns false after a minute. `holds` is called under the lock and
  // may use the accessors with Locked in their names.
  bool WaitFor(const std::function<bool()>& holds) {
    return Within(absl::Minutes(1), [&] {
      const MutexLock lock(&mutex_);
      return holds();
    });
  }
  bool WaitForState(const Key& key, v1::WorkerObservation::State state) {
    return WaitFor([&] { return ObservationLocked(key).state() == state; });
  }
  bool WaitForStep(const Key& key, int64_t step) {
    return WaitFor([&] { return LastStepLocked(key) >= step; });
  }
  // Waits for a heartbeat that began after this call.
  bool WaitForHeartbeat() {
    int64_t seen = 0;
    {
      const MutexLock lock(&mutex_);
      seen = heartbeats_;
    }
    return WaitFor([&] { return heartbeats_ >= seen + 2; });
  }

  v1::WorkerObservation Observation(const Key& key) {
    const MutexLock lock(&mutex_);
    return ObservationLocked(key);
  }
  v1::NodeInfo Node() {
    const MutexLock lock(&mutex_);
    return last_.node();
  }
  std::vector<v1::WorkerRecord> Records(const Key& key) {
    const MutexLock lock(&mutex_);
    return records_[key];
  }
  std::vector<int64_t> Steps(const Key& key) {
    std::vector<int64_t> steps;
    for (const v1::WorkerRecord& record : Records(key)) {
      if (record.has_step()) steps.push_back(record.step().step());
    }
    return steps;
  }
  // How many reports of records arrived, accepted or not.
  int64_t RecordReports() {
    const MutexLock lock(&mutex_);
    return record_reports_;
  }
  // How many reports of logs arrived, accepted or not.
  int64_t LogReports() {
    const MutexLock lock(&mutex_);
    return log_reports_;
  }
  std::string Log(const Key& key) {
    const MutexLock lock(&mutex_);
    return logs_[key];
  }
  v1::ReportDumpRequest Dump(const std::string& id) {
    const MutexLock lock(&mutex_);
    return dumps_[id];
  }
  bool WaitForDump(const std::string& id) {
    return WaitFor([&] { return dumps_.contains(id); });
  }
  std::set<std::string> Incarnations() {
    const MutexLock lock(&mutex_);
    return incarnations_;
  }
  // The join requests so far.
  std::vector<v1::JoinRequest> Joins() {
    const MutexLock lock(&mutex_);
    return joins_;
  }
  // The bearer tokens of all heartbeats.
  std::set<std::string> Secrets() {
    const MutexLock lock(&mutex_);
    return secrets_;
  }
  // While set, heartbeats are refused as if the store knew no secret.
  void ForgetSecrets(bool forget) {
    const MutexLock lock(&mutex_);
    refuse_heartbeats_ = forget ? grpc::StatusCode::UNAUTHENTICATED : grpc::StatusCode::OK;
  }
  // From now on this coordinator has the store with this id, and refuses what is for another.
  void UseStore(const std::string& id) {
    const MutexLock lock(&mutex_);
    store_id_ = id;
  }
  // Heartbeats are answered as if the store did not know this worker.
  void AskUnknown(const Key& key, v1::StopMode mode) {
    const MutexLock lock(&mutex_);
    v1::UnknownWorker& unknown = unknown_[key];
    unknown.set_job_id(std::get<0>(key));
    unknown.set_generation(std::get<1>(key));
    unknown.set_rank(std::get<2>(key));
    unknown.mutable_stop()->set_mode(mode);
  }
  // The store under which the workers of the last heartbeat were started.
  std::string StoreOfWorkers() {
    const MutexLock lock(&mutex_);
    return last_.store_id();
  }
  // Heartbeats are answered as if the agent's allocation were over.
  void EndAllocation() {
    const MutexLock lock(&mutex_);
    refuse_heartbeats_ = grpc::StatusCode::NOT_FOUND;
  }
  // Reports that broke the rules: unexpected gaps, changed records, torn logs.
  std::vector<std::string> Complaints() {
    const MutexLock lock(&mutex_);
    return complaints_;
  }

  v1::WorkerObservation ObservationLocked(const Key& key) const {
    for (const v1::WorkerObservation& worker : last_.workers()) {
      if (Key{worker.job_id(), worker.generation(), worker.rank()} == key) return worker;
    }
    return {};
  }
  int64_t LastStepLocked(const Key& key) const {
    const auto it = records_.find(key);
    if (it == records_.end()) return 0;
    for (auto record = it->second.rbegin(); record != it->second.rend(); ++record) {
      if (record->has_step()) return record->step().step();
    }
    return 0;
  }

 private:
  bool IsForAnother(const std::string& store_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !store_id.empty() && store_id != store_id_;
  }
  static Key KeyOf(const v1::WorkerAssignment& a) { return {a.job_id(), a.generation(), a.rank()}; }

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request,
                    v1::JoinResponse*) override {
    const MutexLock lock(&mutex_);
    joins_.push_back(*request);
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    const MutexLock lock(&mutex_);
    const auto header = context->client_metadata().find("authorization");
    if (header != context->client_metadata().end()) {
      secrets_.emplace(header->second.data(), header->second.size());
    }
    if (refuse_heartbeats_ != grpc::StatusCode::OK) return {refuse_heartbeats_, "not known"};
    ++heartbeats_;
    last_ = *request;
    incarnations_.insert(request->incarnation());
    response->set_epoch(absl::StrCat("epoch-", epoch_));
    for (const auto& [key, assignment] : desired_) *response->add_desired() = assignment;
    for (const auto& [id, dump] : wanted_dumps_) *response->add_dumps() = dump;
    for (const auto& [id, order] : wanted_profiles_) *response->add_profiles() = order;
    response->set_store_id(store_id_);
    for (const auto& [key, unknown] : unknown_) *response->add_unknown() = unknown;
    return grpc::Status::OK;
  }

  grpc::Status ReportRecords(grpc::ServerContext*, const v1::ReportRecordsRequest* request,
                             v1::ReportRecordsResponse* response) override {
    const MutexLock lock(&mutex_);
    ++record_reports_;
    if (IsForAnother(request->store_id())) return {grpc::StatusCode::ABORTED, "another store"};
    if (refuse_records_ != grpc::StatusCode::OK) return {refuse_records_, "refused by the test"};
    std::vector<v1::WorkerRecord>& have =
        records_[{request->job_id(), request->generation(), request->rank()}];
    int64_t previous = 0;
    int taken = 0;
    for (const v1::WorkerRecord& record : request->records()) {
      if (previous != 0 && record.sequence() != previous + 1) {
        complaints_.push_back(absl::StrCat("a batch jumps to record ", record.sequence()));
      }
      previous = record.sequence();
      const auto next = static_cast<int64_t>(have.size()) + 1;
      if (record.sequence() == next && taken < take_at_most_) {
        ++taken;
        have.push_back(record);
      } else if (record.sequence() < next &&
                 have[static_cast<size_t>(record.sequence() - 1)].SerializeAsString() !=
                     record.SerializeAsString()) {
        complaints_.push_back(absl::StrCat("record ", record.sequence(), " changed"));
      }
    }
    response->set_next_sequence(static_cast<int64_t>(have.size()) + 1);
    return grpc::Status::OK;
  }

  grpc::Status ReportLog(grpc::ServerContext*, const v1::ReportLogRequest* request,
                         v1::ReportLogResponse* response) override {
    const MutexLock lock(&mutex_);
    ++log_reports_;
    if (IsForAnother(request->store_id())) return {grpc::StatusCode::ABORTED, "another store"};
    if (!refuse_log_.ok()) return refuse_log_;
    std::string& log = logs_[{request->job_id(), request->generation(), request->rank()}];
    const auto offset = static_cast<size_t>(request->offset());
    if (offset <= log.size()) {
      const std::string& data = request->data();
      const size_t known = std::min(log.size() - offset, data.size());
      if (log.compare(offset, known, data, 0, known) != 0) complaints_.push_back("a log changed");
      log.append(data, known);
    }
    response->set_next_offset(static_cast<int64_t>(log.size()));
    return grpc::Status::OK;
  }

  grpc::Status ReportDump(grpc::ServerContext*, const v1::ReportDumpRequest* request,
                          v1::ReportDumpResponse*) override {
    const MutexLock lock(&mutex_);
    if (dumps_.contains(request->dump_id())) {
      complaints_.push_back(absl::StrCat("dump ", request->dump_id(), " came twice"));
    }
    dumps_[request->dump_id()] = *request;
    wanted_dumps_.erase(request->dump_id());
    return grpc::Status::OK;
  }

  // Takes every part at its second attempt, as if its reader were slow.
  grpc::Status ReportProfile(grpc::ServerContext*, const v1::ReportProfileRequest* request,
                             v1::ReportProfileResponse* response) override {
    const MutexLock lock(&mutex_);
    ProfileReport& profile = profiles_[request->profile_id()];
    const auto have = static_cast<int64_t>(profile.data.size());
    if (!request->error().empty()) {
      profile.error = request->error();
      wanted_profiles_.erase(request->profile_id());
    } else if (request->size() == 0) {
      ++profile.signs;
    } else if (request->offset() != have) {
      complaints_.push_back(absl::StrCat("a trace jumps to ", request->offset()));
    } else if (refused_at_ != have) {
      refused_at_ = have;
      ++profile.refused;
    } else {
      profile.data += request->data();
    }
    if (profile.complete) complaints_.push_back("a trace came twice");
    profile.complete =
        request->size() > 0 && static_cast<int64_t>(profile.data.size()) == request->size();
    response->set_next_offset(static_cast<int64_t>(profile.data.size()));
    return grpc::Status::OK;
  }

  const std::filesystem::path socket_;
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_;
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::HeartbeatRequest last_;
  std::string store_id_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, v1::UnknownWorker> unknown_ ABSL_GUARDED_BY(mutex_);
  grpc::StatusCode refuse_records_ ABSL_GUARDED_BY(mutex_) = grpc::StatusCode::OK;
  grpc::Status refuse_log_ ABSL_GUARDED_BY(mutex_);
  int64_t log_reports_ ABSL_GUARDED_BY(mutex_) = 0;
  int take_at_most_ ABSL_GUARDED_BY(mutex_) = 1 << 30;
  int64_t record_reports_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, v1::WorkerAssignment> desired_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::DumpRequest> wanted_dumps_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::ProfileOrder> wanted_profiles_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ProfileReport> profiles_ ABSL_GUARDED_BY(mutex_);
  int64_t refused_at_ ABSL_GUARDED_BY(mutex_) = -1;  // the part that was last refused
  std::map<Key, std::vector<v1::WorkerRecord>> records_;
  std::map<Key, std::string> logs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::ReportDumpRequest> dumps_;
  std::vector<v1::JoinRequest> joins_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> secrets_ ABSL_GUARDED_BY(mutex_);
  grpc::StatusCode refuse_heartbeats_ ABSL_GUARDED_BY(mutex_) = grpc::StatusCode::OK;
  std::set<std::string> incarnations_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> complaints_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa
