// One message to a web server of the test.
#include "server/notice/courier.h"

#include <memory>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "server/notice/signature.h"
#include "server/notice/try_notice.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/net/data_server.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

constexpr char kKey[] = "0123456789abcdef";

class CourierTest : public ::testing::Test {
 protected:
  Notice To(const DataServer& server, NoticeForm form = NoticeForm::kJson) {
    return {.name = "ops",
            .form = form,
            .place = "webhook http://127.0.0.1",
            .url = server.url("/hook/s3cr3t"),
            .key = kKey,
            .any_address = true};
  }
  Outcome Send(const Notice& notice, int64_t sequence = 17) {
    Telling telling;
    telling.event.set_sequence(sequence);
    telling.event.set_reason("HANG");
    auto job = std::make_shared<v1::StoredJob>();
    job->mutable_job()->set_name("demo");
    telling.job = job;
    Courier courier(notice, {.notice = "ops", .host = "lab"}, "/bin/true", cancelled_, clock_);
    return courier.Send(std::span(&telling, 1));
  }

  FakeClock clock_;
  std::atomic<bool> cancelled_ = false;
};

TEST_F(CourierTest, AWebhookGetsTheEventWithItsNumberAndASignature) {
  DataServer server([](const Request&) { return Reply{.status = 204}; });
  EXPECT_EQ(Send(To(server)).kind, Outcome::kDelivered);
  ASSERT_THAT(server.seen(), SizeIs(1));
  const Request request = server.seen()[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, "/hook/s3cr3t");
  EXPECT_EQ(nlohmann::json::parse(request.body)["event"]["sequence"], 17);
  EXPECT_EQ(request.header("x-nsa-delivery"), "17");
  EXPECT_EQ(request.header("x-nsa-signature"),
            NoticeSignature(kKey, absl::ToUnixSeconds(clock_.Wall()), request.body));
  EXPECT_THAT(request.header("content-type"), HasSubstr("application/json"));
}

TEST_F(CourierTest, WithoutAKeyThereIsNoSignature) {
  DataServer server([](const Request&) { return Reply{}; });
  Notice notice = To(server, NoticeForm::kSlack);
  notice.key.clear();
  EXPECT_EQ(Send(notice).kind, Outcome::kDelivered);
  EXPECT_EQ(server.seen()[0].header("x-nsa-signature"), "");
  EXPECT_THAT(nlohmann::json::parse(server.seen()[0].body)["text"], HasSubstr("demo"));
}

TEST_F(CourierTest, FollowsNoRedirectAndConnectsToNoPrivateAddress) {
  DataServer server([](const Request&) {
    return Reply{.status = 302, .headers = {{"Location", "/other"}}};
  });
  EXPECT_EQ(Send(To(server)).kind, Outcome::kRefused);
  EXPECT_THAT(server.seen(), SizeIs(1));
  Notice notice = To(server);
  notice.any_address = false;
  const Outcome outcome = Send(notice);
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_THAT(outcome.said, HasSubstr("not public"));
  EXPECT_THAT(server.seen(), SizeIs(1));
}

TEST_F(CourierTest, WhatItSaysOfAFailureHasNoSecret) {
  DataServer server([](const Request& request) {
    return Reply{.status = 404, .body = "Cannot POST " + request.target};
  });
  Notice notice = To(server);
  EXPECT_THAT(Send(notice).said, AllOf(HasSubstr("404"), Not(HasSubstr("s3cr3t"))));
  notice.url = "http://127.0.0.1:1/hook/s3cr3t";
  const Outcome outcome = Send(notice);
  EXPECT_EQ(outcome.kind, Outcome::kAgain);
  EXPECT_THAT(outcome.said, AllOf(HasSubstr("127.0.0.1"), Not(HasSubstr("s3cr3t"))));
}

TEST_F(CourierTest, TheEndOfTheCoordinatorEndsARequest) {
  DataServer server([this](const Request&) {
    cancelled_ = true;
    return Reply{.body = "two halves", .stall = absl::Seconds(60)};
  });
  const absl::Duration begin = RealClock().Monotonic();
  Send(To(server));
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(8)) << "sooner than the stall's limit";
}

TEST_F(CourierTest, ASampleSaysWhatTheReceiverAnswered) {
  int status = 200;
  DataServer server([&](const Request&) { return Reply{.status = status, .body = "no_service"}; });
  const NoticeOptions options = {.notices = {To(server)}};
  const RealClock clock;
  const auto said = TryNotice(options, "ops", "http://127.0.0.1:9464/", clock);
  ASSERT_OK(said);
  EXPECT_THAT(*said, HasSubstr("notice ops: webhook http://127.0.0.1: HTTP 200: no_service"));
  const auto sent = nlohmann::json::parse(server.seen()[0].body);
  EXPECT_TRUE(sent["sample"]);
  EXPECT_EQ(sent["event"]["reason"], "COMPLETED");
  status = 404;
  EXPECT_THAT(TryNotice(options, "ops", "", clock),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("HTTP 404: no_service")));
  status = 500;
  EXPECT_THAT(TryNotice(options, "ops", "", clock), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(TryNotice(options, "opps", "", clock),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean 'ops'?")));
}

}  // namespace
}  // namespace nsa::server
