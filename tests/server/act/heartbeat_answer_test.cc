// How large the answer to a heartbeat may become: gRPC sends 16 MiB, and a machine that has no
// answer is lost with all its jobs.
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class HeartbeatAnswerTest : public Harness {
 protected:
  HeartbeatAnswerTest() {
    request_.set_incarnation("first");
    request_.mutable_node()->set_name("a");
    request_.mutable_node()->set_cpu_slots(64);
    request_.mutable_node()->set_cores(64);
    request_.mutable_node()->set_memory_bytes(int64_t{256} << 30);
    request_.mutable_node()->set_free_memory_bytes(int64_t{256} << 30);
  }

  v1::HeartbeatResponse Beat() {
    const auto response = life().service->Answer(request_, LocalCaller());
    EXPECT_OK(response.status());
    EXPECT_LT(response->ByteSizeLong(), size_t{13} << 20);
    return *response;
  }

  // A job of many ranks that starts on this machine, with a spec of about 700 KB.
  std::string Start(const std::string& name, int ranks) {
    v1::JobSpec spec = Spec(name, ranks);
    spec.mutable_train()->set_batch_size(ranks);
    const std::string id = Submit(spec);
    const auto moved = store().Update(
        id, [ranks](v1::StoredJob* stored, std::vector<v1::JobEvent>*) -> absl::Status {
          v1::Job& job = *stored->mutable_job();
          (*job.mutable_spec()->mutable_labels())["large"] = std::string(700'000, 'x');
          job.set_state(v1::Job::STATE_STARTING);
          job.set_generation(1);
          for (int rank = 0; rank < ranks; ++rank) {
            v1::RankPlacement* const place = stored->add_placements();
            place->set_node("a");
            place->set_rank(rank);
          }
          return absl::OkStatus();
        });
    EXPECT_OK(moved.status());
    return id;
  }

  static std::map<std::string, int> RanksIn(const v1::HeartbeatResponse& response) {
    std::map<std::string, int> ranks;
    for (const v1::WorkerAssignment& one : response.desired()) ++ranks[one.job_id()];
    return ranks;
  }

  v1::HeartbeatRequest request_;
};

TEST_F(HeartbeatAnswerTest, RanksThatTheMachineHasStayWhenOthersAreTooMuch) {
  Beat();
  const std::string second = Start("second", 10);
  const std::string first = Start("first", 10);
  // The agent has the ranks of one of them.
  for (int rank = 0; rank < 10; ++rank) {
    v1::WorkerObservation* const worker = request_.add_workers();
    worker->set_job_id(first);
    worker->set_generation(1);
    worker->set_rank(rank);
    worker->set_state(v1::WorkerObservation::STATE_RUNNING);
  }
  const std::map<std::string, int> ranks = RanksIn(Beat());
  EXPECT_EQ(ranks.at(first), 10) << "one that is left out would be ended";
  EXPECT_EQ(ranks.at(second), 7) << "of 12 MiB, 5 are left";
}

TEST_F(HeartbeatAnswerTest, AJobWhoseSpecIsTooMuchForItsRanksIsRefused) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = Spec("demo", 64);
  (*request.mutable_spec()->mutable_labels())["large"] = std::string(200'000, 'x');
  EXPECT_THAT(control().Submit(request).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("spec: 200"), HasSubstr("each of 64 ranks"))));
  request.mutable_spec()->mutable_resources()->set_nodes(8);
  EXPECT_THAT(control().Submit(request).status().message(), ::testing::Not(HasSubstr("each of")));
}

}  // namespace
}  // namespace nsa::server
