// Calls for traces over gRPC: who may make them, who may answer, and what remains in the history.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/server_fixture.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class ProfileCallsTest : public ServerTest {
 protected:
  ~ProfileCallsTest() override {
    if (call_.joinable()) call_.join();
  }

  std::string RunningJob() {
    KeepBeating(2, 0);
    const std::string id = Submit(Spec("demo", 2));
    EXPECT_TRUE(Within(absl::Minutes(1), [&] { return Get(id).state() == Job::STATE_RUNNING; }));
    return id;
  }

  // Profiles in a thread; Join() gives its result.
  void StartCall(const std::string& job, int32_t steps) {
    context_ = MakeContext(kTimeout, "");
    call_ = std::thread([this, job, steps] {
      v1::ProfileJobRequest request;
      request.set_job(job);
      request.set_steps(steps);
      const auto reader = people_->ProfileJob(context_.get(), request);
      v1::ProfileJobResponse part;
      while (reader->Read(&part)) parts_.push_back(part);
      status_ = FromGrpc(reader->Finish());
    });
  }
  absl::Status Join() {
    call_.join();
    return status_;
  }
  absl::Status CallNow(const std::string& job, int32_t steps) {
    StartCall(job, steps);
    return Join();
  }

  // Answers the orders of the fake agent as `answer` says, in its thread.
  void Answer(std::function<void(const v1::ProfileOrder&)> answer) {
    StopBeating();
    agent_->on_profile = std::move(answer);
    beating_ = true;
    beats_ = std::thread([this] {
      while (beating_) {
        agent_->Beat().IgnoreError();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }

  std::vector<std::string> History(const std::string& id) {
    const auto context = MakeContext(kTimeout, "");
    v1::WatchEventsRequest request;
    request.set_job(id);
    const auto reader = people_->WatchEvents(context.get(), request);
    std::vector<std::string> events;
    v1::WatchEventsResponse response;
    while (reader->Read(&response)) {
      events.push_back(response.event().reason() + " " + response.event().text());
    }
    return events;
  }

  absl::StatusOr<v1::ReportProfileResponse> Report(const std::string& id, int32_t rank,
                                                   const std::string& data,
                                                   const std::string& error = "") {
    v1::ReportProfileRequest report;
    report.set_profile_id(id);
    report.set_rank(rank);
    report.set_size(static_cast<int64_t>(data.size()));
    report.set_data(data);
    report.set_error(error);
    return Call<v1::ReportProfileResponse>(&v1::FleetService::Stub::ReportProfile, agents_.get(),
                                           report);
  }

  std::unique_ptr<grpc::ClientContext> context_;
  std::thread call_;
  std::vector<v1::ProfileJobResponse> parts_;
  absl::Status status_;
};

TEST_F(ProfileCallsTest, RefusesWhatDoesNotTrainAndWhatIsOutOfRange) {
  EXPECT_EQ(CallNow("nothing", 3).code(), absl::StatusCode::kNotFound);
  const std::string id = Submit(Spec("demo", 2));
  const absl::Status queued = CallNow(id, 3);
  EXPECT_EQ(queued.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(queued.message()), HasSubstr("does not train"));
  KeepBeating(2, 0);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] { return Get(id).state() == Job::STATE_RUNNING; }));
  EXPECT_EQ(CallNow(id, 101).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CallNow(id, -1).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ProfileCallsTest, PassesTracesOnAndNotesThemInHistoryAndAuditLog) {
  const std::string id = RunningJob();
  std::atomic<int> wrong = 0;
  std::string profile;
  Answer([&](const v1::ProfileOrder& order) {
    if (order.steps() != 3 || order.job_id() != id || order.generation() != 1) ++wrong;
    profile = order.profile_id();
    (void)Report(order.profile_id(), order.rank(), order.rank() == 0 ? "trace of rank 0" : "",
                 order.rank() == 0 ? "" : "rank 1: broken");
  });
  ASSERT_OK(CallNow(id, 0));
  StopBeating();
  EXPECT_EQ(wrong, 0) << "0 steps mean 3";
  ASSERT_EQ(parts_.size(), 2u);
  const int first = parts_[0].rank();
  EXPECT_EQ(parts_[first].data(), "trace of rank 0");
  EXPECT_EQ(parts_[first].node(), "a");
  EXPECT_EQ(parts_[1 - first].error(), "rank 1: broken");
  EXPECT_THAT(History(id),
              Contains(AllOf(HasSubstr("PROFILED 3 steps of 1 rank"), HasSubstr("for local"),
                             HasSubstr("15 bytes; rank 1: broken"))));
  const auto audit = Call<v1::ListAuditResponse>(&v1::CoordinatorService::Stub::ListAudit,
                                                 people_.get(), v1::ListAuditRequest());
  ASSERT_OK(audit);
  std::vector<std::string> noted;
  for (const v1::AuditEntry& entry : audit->entries()) {
    noted.push_back(entry.who() + " " + entry.what() + " " + entry.subject() + " " +
                    entry.result());
  }
  EXPECT_THAT(noted, Contains("local ProfileJob " + id + " OK"));
  const auto late = Report(profile, 0, "late");
  ASSERT_OK(late);
  EXPECT_EQ(late->next_offset(), 4) << "nobody waits for it any more";
}

TEST_F(ProfileCallsTest, OneCallerAtATimeAndALeaverMakesRoom) {
  const std::string id = RunningJob();
  std::atomic<bool> ordered = false;
  Answer([&](const v1::ProfileOrder&) { ordered = true; });
  StartCall(id, 3);
  ASSERT_TRUE(Within(kTimeout, [&] { return ordered.load(); }));
  v1::ProfileJobRequest request;
  request.set_job(id);
  const auto context = MakeContext(kTimeout, "");
  const auto reader = people_->ProfileJob(context.get(), request);
  v1::ProfileJobResponse part;
  EXPECT_FALSE(reader->Read(&part));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  context_->TryCancel();
  EXPECT_FALSE(Join().ok());
  Answer([&](const v1::ProfileOrder& order) {
    (void)Report(order.profile_id(), order.rank(), "trace");
  });
  EXPECT_TRUE(Within(kTimeout, [&] {
    parts_.clear();
    return CallNow(id, 3).ok();
  }));
  StopBeating();
  EXPECT_EQ(parts_.size(), 2u);
}

}  // namespace
}  // namespace nsa::server
