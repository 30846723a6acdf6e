#include "server/rpc/call_quota.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr CallQuota::Limits kLimits = {
    .what = "answer", .advice = "read", .of_one_caller = 64 * kMiB, .of_all = 128 * kMiB};

TEST(CallQuota, BoundsACallerAndAllOfThemUntilTheyLetGo) {
  const CallQuota quota(kLimits);
  auto first = quota.Take("ada", 64 * kMiB);
  ASSERT_OK(first.status());
  EXPECT_THAT(quota.Take("ada", 1).status(), StatusIs(absl::StatusCode::kResourceExhausted));
  auto second = quota.Take("eve", 64 * kMiB);
  ASSERT_OK(second.status());
  EXPECT_THAT(quota.Take("bob", 1).status(), StatusIs(absl::StatusCode::kResourceExhausted));
  first = std::shared_ptr<void>();
  EXPECT_OK(quota.Take("bob", kMiB).status());
  EXPECT_OK(quota.Take("ada", 64 * kMiB).status());
  EXPECT_THAT(quota.Take("eve", 1).status(), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(AnswerShare, CountsTheAnswerThatIsNotReadYet) {
  const CallQuota quota(kLimits);
  AnswerShare share(quota, "ada", kMiB);
  ASSERT_OK(share.Hold(0));
  EXPECT_OK(quota.Take("ada", 63 * kMiB).status());
  EXPECT_THAT(quota.Take("ada", 63 * kMiB + 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(share.Hold(31 * kMiB));  // counted twice
  EXPECT_THAT(share.Hold(32 * kMiB), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(share.Hold(31 * kMiB)) << "instead of the one before";
  EXPECT_EQ(AnswerShare::OfThisCall(), nullptr);
  const auto own = std::make_shared<AnswerShare>(quota, "ada", 0);
  {
    const AnswerShare::Scope scope(own);
    EXPECT_EQ(AnswerShare::OfThisCall(), own);
  }
  EXPECT_EQ(AnswerShare::OfThisCall(), nullptr);
}

// A reader that takes nothing, over TCP.
class UnreadAnswersTest : public ServerTest {
 protected:
  struct Reader {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream;
  };

  // They end by themselves; a slow machine is no reason for an earlier end.
  static constexpr absl::Duration kPatience = absl::Minutes(3);

  // As long as a job may be.
  std::string SubmitLarge() {
    v1::JobSpec spec = Spec("large");
    spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    for (int i = 0; i < 240; ++i) {
      spec.mutable_data()->add_path(
          absl::StrCat("https://example.com/", i, "/", std::string(3'800, 'x')));
    }
    const auto submitted = TrySubmit(spec);
    EXPECT_OK(submitted.status());
    return submitted.ok() ? submitted->job().id() : "";
  }
  Reader Watch(v1::CoordinatorService::Stub* stub, const std::string& id) {
    Reader reader{.context = MakeContext(kPatience, Token()), .stream = nullptr};
    v1::WatchJobRequest request;
    request.set_job(id);
    reader.stream = stub->WatchJob(reader.context.get(), request);
    return reader;
  }
  static grpc::StatusCode EndOf(Reader* reader) {
    v1::WatchJobResponse response;
    while (reader->stream->Read(&response)) reader->context->TryCancel();
    return reader->stream->Finish().error_code();
  }
};

TEST_F(UnreadAnswersTest, AreCountedAndOthersOfTheCallerRefused) {
  const std::string id = SubmitLarge();
  grpc::ChannelArguments takes_little;
  takes_little.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto connect = [&](const grpc::ChannelArguments& arguments) {
    return v1::CoordinatorService::NewStub(grpc::CreateCustomChannel(
        server_->listen_address(), grpc::InsecureChannelCredentials(), arguments));
  };
  const auto unread = connect(takes_little);
  // A connection of its own: unread answers may fill the window of theirs.
  const auto stub = connect(grpc::ChannelArguments());
  const auto get = [&] {
    v1::GetJobRequest request;
    request.set_job(id);
    v1::GetJobResponse response;
    return stub->GetJob(MakeContext(kPatience, Token()).get(), request, &response).error_code();
  };
  EXPECT_EQ(get(), grpc::OK);
  // Each takes 1.8 MB of 64 MiB, so that 36 are served.
  std::vector<Reader> readers;
  for (int i = 0; i < 40; ++i) readers.push_back(Watch(unread.get(), id));
  EXPECT_TRUE(Within(kPatience, [&] {
    if (get() == grpc::RESOURCE_EXHAUSTED) return true;
    // Room is left where a reader was refused while get() held some. Another takes it.
    readers.push_back(Watch(unread.get(), id));
    return false;
  }));
  EXPECT_EQ(Get(id).id(), id) << "the unix socket";
  size_t refused = 0;
  for (Reader& reader : readers) refused += EndOf(&reader) == grpc::RESOURCE_EXHAUSTED;
  EXPECT_GT(refused, 0);
  EXPECT_GT(readers.size() - refused, 30) << "others were not served";
  EXPECT_TRUE(Within(kPatience, [&] { return get() == grpc::OK; }));
}

}  // namespace
}  // namespace nsa::server
