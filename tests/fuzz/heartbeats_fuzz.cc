// Any sequence of heartbeats, true and false ones, of three nodes, with time, looks of the
// reconciler, stops, resumes and restarts of the coordinator between them: a state machine whose
// invariants hold after each step.
#include <functional>
#include <set>

#include "common/base/limits.h"
#include "server/act/desired.h"
#include "server/decide/lifecycle.h"
#include "tests/fuzz/world.h"

namespace nsa::fuzz {
namespace {

constexpr int kSlots = 2;
constexpr int kNodes = 3;
constexpr int kLongest = 200;  // operations

std::string NodeName(uint8_t number) {
  return std::string(1, static_cast<char>('a' + number % kNodes));
}

class Machine {
 public:
  Machine() : world_(/*with_job=*/false) {
    Require(world_.Submit("one", 1).ok() && world_.Submit("two", 2).ok(), "a tiny job is refused");
  }

  void Step(Input* input) {
    switch (input->Byte() % 10) {
      case 0:
      case 1:
        Beat(NodeName(input->Byte()), "1", /*honest=*/true, input);
        break;
      case 2:
        Beat(NodeName(input->Byte()), std::to_string(input->Byte() % 3), /*honest=*/false, input);
        break;
      case 3:
        Pass(input->Byte());
        break;
      case 4:
      case 5:
        world_.Look();
        break;
      case 6:
        Stop(input->Byte());
        break;
      case 7:
        Resume(input->Byte());
        break;
      case 8:
        world_.Restart();
        break;
      default:
        Records(input);
    }
    Check();
  }

 private:
  static std::string JobName(uint8_t number) { return number % 2 == 0 ? "one" : "two"; }

  // A heartbeat of a node. An honest one reports the workers that were asked of it; a false one
  // whatever the input says.
  void Beat(const std::string& node, const std::string& incarnation, bool honest, Input* input) {
    v1::HeartbeatRequest request;
    request.mutable_node()->set_name(node);
    request.mutable_node()->set_cpu_slots(kSlots);
    request.mutable_node()->set_memory_bytes(int64_t{64} << 30);
    request.mutable_node()->set_free_memory_bytes(int64_t{60} << 30);
    request.set_incarnation(incarnation);
    if (honest) {
      for (const v1::WorkerAssignment& desired : desired_[node]) {
        v1::WorkerObservation* worker = request.add_workers();
        worker->set_job_id(desired.job_id());
        worker->set_generation(desired.generation());
        worker->set_rank(desired.rank());
        Observe(input->Byte(), worker);
      }
    } else {
      for (int i = input->Byte() % 4; i > 0; --i) AddLie(input, &request);
      if (input->Byte() % 4 == 0) request.mutable_node()->set_cpu_slots(input->Byte());
      const uint8_t lie = input->Byte();
      if (lie % 8 == 0) request.mutable_node()->set_name(std::string(input->Text()));
      if (lie % 8 == 1) AddMakeup(input, request.mutable_node());
    }
    const auto response = world_.life().service->Answer(request, server::LocalCaller());
    RequireRefusal(response.status());
    if (!response.ok()) return;
    desired_[node].clear();
    for (const v1::WorkerAssignment& assignment : response->desired()) {
      desired_[node].push_back(assignment);
    }
  }

  // What machines must have in common.
  static void AddMakeup(Input* input, v1::NodeInfo* node) {
    node->set_unix_nanos(input->Number());
    node->set_worker_hash(input->Byte() % 2 == 0 ? "0123456789abcdef" : std::string(input->Text()));
    node->set_nccl_version(std::string(input->Text()));
    if (input->Byte() % 2 == 0) node->set_rank_address("10.0.0.2");
  }

  static void Observe(uint8_t how, v1::WorkerObservation* worker) {
    worker->set_pid(4711);
    worker->set_state(static_cast<v1::WorkerObservation::State>(how % 4));
    worker->set_step(how / 4 % 8);
    if (how / 4 % 2 == 1) worker->set_exit_signal(how % 16);
    if (how / 8 % 4 == 1) worker->set_exit_code(how % 5);
    worker->set_killed_by_agent(how / 64 % 2 == 1);
    worker->set_machine_restarted(how == 0xff);
    worker->set_seconds_since_progress(how % 8 == 7 ? 1e9 : 0);
  }

  void AddLie(Input* input, v1::HeartbeatRequest* request) {
    v1::WorkerObservation* worker = request->add_workers();
    const uint8_t kind = input->Byte();
    const auto job = world_.life().store->Find(JobName(kind));
    worker->set_job_id(kind % 8 == 7 || !job.ok() ? std::string(input->Text())
                                                  : (*job)->job().id());
    worker->set_generation(kind / 8 % 2 == 0 && job.ok() ? (*job)->job().generation()
                                                         : input->Number());
    worker->set_rank(kind / 16 % 2 == 0 ? input->Byte() % 3
                                        : static_cast<int32_t>(input->Number()));
    Observe(input->Byte(), worker);
    if (kind / 32 % 2 == 1) worker->set_step(input->Number());
  }

  void Pass(uint8_t how) {
    constexpr absl::Duration kTimes[] = {absl::Milliseconds(20), absl::Seconds(1),
                                         absl::Seconds(11),      absl::Seconds(61),
                                         absl::Seconds(301),     absl::Hours(2)};
    if (how >= 250) {
      world_.clock().JumpWall(absl::Hours(how % 2 == 0 ? 100 : -100));
    } else {
      world_.clock().Advance(kTimes[how % std::size(kTimes)]);
    }
    world_.life().fleet.ForgetLost(world_.life().store->Active());
  }

  void Stop(uint8_t how) {
    v1::StopJobRequest request;
    request.set_job(JobName(how));
    request.mutable_stop()->set_mode(static_cast<v1::StopMode>(how / 2 % 5));
    request.mutable_stop()->set_at_step(how / 16);
    RequireRefusal(world_.life().control->Stop(request).status());
  }

  void Resume(uint8_t how) {
    v1::ResumeJobRequest request;
    request.set_job(JobName(how));
    RequireRefusal(world_.life().control->Resume(request).status());
  }

  // Records of a rank, with any content.
  void Records(Input* input) {
    v1::ReportRecordsRequest request;
    const uint8_t kind = input->Byte();
    const auto job = world_.life().store->Find(JobName(kind));
    if (!job.ok()) return;
    request.set_job_id((*job)->job().id());
    request.set_generation((*job)->job().generation() - (kind / 2 % 4 == 3 ? 1 : 0));
    request.set_rank(kind / 8 % 3);
    int64_t& sequence = sequences_[{request.job_id(), request.generation(), request.rank()}];
    for (int i = 1 + kind / 32 % 4; i > 0; --i) {
      const std::string_view bytes = input->Text();
      v1::WorkerRecord record;
      if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
      record.set_sequence(sequence + request.records_size() + 1);
      *request.add_records() = record;
    }
    const auto taken = world_.life().service->Take(request, server::LocalCaller());
    RequireRefusal(taken.status());
    if (taken.ok()) sequence = taken->next_sequence() - 1;
  }

  // What holds after each step.
  void Check() {
    server::Life& life = world_.life();
    Require(life.fleet.Nodes().size() <= limits::kNodes, "too many nodes");
    for (const char* name : {"one", "two"}) {
      const auto job = life.store->Find(name);
      Require(job.ok(), job.status().ToString());
      CheckJob((*job)->job(), **job);
    }
    for (int i = 0; i < kNodes; ++i) {
      const std::string node = NodeName(static_cast<uint8_t>(i));
      std::set<std::pair<std::string, int32_t>> ranks;
      for (const auto& assignment : server::DesiredOn(
               node, life.store->Active(), std::bind_front(&server::Fleet::Worker, &life.fleet),
               absl::UnixEpoch())) {
        Require(ranks.emplace(assignment.job_id(), assignment.rank()).second,
                "one rank twice on a node");
      }
    }
  }

  void CheckJob(const v1::Job& job, const v1::StoredJob& stored) {
    const int ranks = job.spec().resources().gpus();
    Require(job.generation() >= generations_[job.id()], "a generation that went back");
    generations_[job.id()] = job.generation();
    std::set<int32_t> placed;
    for (const v1::RankPlacement& place : stored.placements()) {
      Require(place.rank() >= 0 && place.rank() < ranks && placed.insert(place.rank()).second,
              "a rank placed twice, or one that the job does not have");
    }
    if (server::HasGang(job.state())) {
      Require(static_cast<int>(placed.size()) == ranks, "a gang without all its ranks");
    }
    Require(v1::Job::State_IsValid(job.state()) && job.state() != v1::Job::STATE_UNSPECIFIED,
            "no state");
    const v1::Job view = world_.life().control->View(stored);
    Require(view.ByteSizeLong() < 1 << 20, "a job of a megabyte");
  }

  World world_;
  std::map<std::string, std::vector<v1::WorkerAssignment>> desired_;  // by node
  std::map<std::string, int64_t> generations_;                        // by job
  std::map<std::tuple<std::string, int64_t, int32_t>, int64_t> sequences_;
};

}  // namespace
}  // namespace nsa::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nsa::fuzz::Input input(data, size);
  nsa::fuzz::Machine machine;
  for (int i = 0; i < nsa::fuzz::kLongest && !input.empty(); ++i) machine.Step(&input);
  return 0;
}
