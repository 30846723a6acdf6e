// Calls over gRPC that read a user's files. They may be slow, and their number is bounded.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AnyOf;
using ::testing::StartsWith;

class FileCalls : public ServerTest {
 protected:
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  // More calls than can run and wait at once.
  static constexpr size_t kFlood = 80;

  ~FileCalls() override {
    Leave();
    EXPECT_TRUE(Within(kPatience, [&] { return Ended() == calls_.size(); }));
  }

  // A job for which preflight has to compare 64 times 4 GiB, to check that `val` is not trained on.
  v1::JobSpec SlowSpec() {
    constexpr uintmax_t kBytes = uintmax_t{4} << 30;  // sparse: uses no disk space
    const std::filesystem::path val = folder_ / "val";
    const std::filesystem::path train = folder_ / "train";
    for (const auto& path : {val, train}) {
      std::ofstream(path) << " ";
      std::filesystem::resize_file(path, kBytes);
    }
    std::fstream(val, std::ios::in | std::ios::out)
        .seekp(static_cast<std::streamoff>(kBytes - 1))
        .put('x');
    v1::JobSpec spec = Spec("slow");
    spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    spec.mutable_data()->add_val_path(val.string());
    for (int i = 0; i < 64; ++i) {
      const std::filesystem::path name = folder_ / absl::StrCat("train-", i);
      std::filesystem::create_hard_link(train, name);
      spec.mutable_data()->add_path(name.string());
    }
    return spec;
  }

  // Sends kFlood slow checks and waits until one is refused: then all threads are busy.
  void Flood() {
    request_.set_validate_only(true);
    *request_.mutable_spec() = SlowSpec();
    calls_ = std::vector<SlowCall>(kFlood);
    for (SlowCall& call : calls_) {
      call.context = MakeContext(absl::Minutes(10), "");
      people_->async()->SubmitJob(call.context.get(), &request_, &call.response,
                                  [this](const grpc::Status& status) {
                                    const MutexLock lock(&mutex_);
                                    ++ended_[status.error_code()];
                                    message_ = status.error_message();
                                  });
    }
    ASSERT_TRUE(Within(kPatience, [&] { return Ended() > 0; }));
    const MutexLock lock(&mutex_);
    EXPECT_EQ(ended_.begin()->first, grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(message_, StartsWith("SubmitJob: too many calls wait for file-calls (at most 64,"));
  }
  void Leave() {
    for (SlowCall& call : calls_) call.context->TryCancel();
  }
  size_t Ended() {
    const MutexLock lock(&mutex_);
    size_t all = 0;
    for (const auto& [code, count] : ended_) all += count;
    return all;
  }
  std::map<grpc::StatusCode, size_t> EndedBy() {
    const MutexLock lock(&mutex_);
    return ended_;
  }

  struct SlowCall {
    std::unique_ptr<grpc::ClientContext> context;
    v1::SubmitJobResponse response;
  };
  v1::SubmitJobRequest request_;
  std::vector<SlowCall> calls_;
  Mutex mutex_;
  std::map<grpc::StatusCode, size_t> ended_ ABSL_GUARDED_BY(mutex_);
  std::string message_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(FileCalls, StopNothingElseAndEndWhenNobodyWaits) {
  const std::string id = Submit(Spec("queued"));
  Flood();
  // Heartbeats, a launch, records and all other calls of users still work.
  FakeAgent agent("a", 1, Wire());
  EXPECT_TRUE(Within(kPatience, [&] {
    EXPECT_OK(agent.Beat());
    return Get(id).state() == Job::STATE_RUNNING;
  }));
  agent.Train(100);
  EXPECT_OK(agent.Beat());
  EXPECT_EQ(Get(id).progress().step(), 20);

  Leave();
  EXPECT_TRUE(Within(kPatience, [&] { return TrySubmit(Spec("another")).ok(); }))
      << "the threads are free again";
}

TEST_F(FileCalls, DoNotHoldTheCoordinatorBackThatGoesDown) {
  Flood();
  // The server takes the calls of a connection in order: once this one is answered, it has them
  // all.
  EXPECT_OK(Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes, people_.get(),
                                        v1::ListNodesRequest()));
  server_->Drain(absl::Minutes(5));
  ASSERT_TRUE(Within(kPatience, [&] { return Ended() == kFlood; }));
  for (const auto& [code, count] : EndedBy()) {
    EXPECT_THAT(code, AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::RESOURCE_EXHAUSTED))
        << "told, and not cut off";
  }
}

}  // namespace
}  // namespace nsa::server
