// Many calls for stacks at once, over gRPC.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/act/dump_broker.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

class DumpCallsTest : public ServerTest {
 protected:
  static constexpr size_t kCalls = 100;

  std::string RunningJob() {
    KeepBeating(1, 0);
    const std::string id = Submit(Spec("demo"));
    EXPECT_TRUE(Within(absl::Minutes(1), [&] { return Get(id).state() == Job::STATE_RUNNING; }));
    return id;
  }

  // Calls that have been sent and are answered later.
  struct Calls {
    struct One {
      std::shared_ptr<grpc::ClientContext> context;
      v1::DumpStackResponse response;
      grpc::Status status;
    };
    std::vector<One> all{kCalls};
    std::atomic<size_t> ended = 0;
  };
  void Send(const std::string& job, Calls* calls) {
    request_.set_job(job);
    request_.set_rank(-1);
    for (Calls::One& one : calls->all) {
      one.context = MakeContext(kTimeout, "");
      people_->async()->DumpStack(one.context.get(), &request_, &one.response,
                                  [&one, calls](const grpc::Status& status) {
                                    one.status = status;
                                    ++calls->ended;
                                  });
    }
  }

  v1::DumpStackRequest request_;  // must outlive the calls
};

TEST_F(DumpCallsTest, AHundredCallsStopTheRankOnceAndDelayNobody) {
  const std::string id = RunningJob();
  Calls calls;
  Send(id, &calls);
  const absl::Duration asked = RealClock().Monotonic();
  EXPECT_OK(Call<v1::ListJobsResponse>(&v1::CoordinatorService::Stub::ListJobs, people_.get(),
                                       v1::ListJobsRequest()));
  EXPECT_LT(RealClock().Monotonic() - asked, absl::Seconds(2));
  ASSERT_TRUE(Within(kTimeout, [&] { return calls.ended == kCalls; }));
  StopBeating();
  EXPECT_LE(agent_->dumps, 5) << "a few, because not all hundred arrive within one dump";
  size_t answered = 0;
  for (const Calls::One& one : calls.all) {
    if (one.status.ok()) {
      ++answered;
      ASSERT_EQ(one.response.dumps_size(), 1);
      EXPECT_EQ(one.response.dumps(0).stacks(), "#0 main\n");
    } else {
      EXPECT_EQ(one.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_THAT(one.status.error_message(), HasSubstr("calls already wait"));
    }
  }
  EXPECT_GE(answered, DumpBroker::kMostWaiting);
}

}  // namespace
}  // namespace nsa::server
