// What follows an answer: delivered, again or refused, and after which pause.
#include "server/notice/outcome.h"

#include "gmock/gmock.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUrl[] = "https://hooks.example.com/services/T0SECRET/B1?token=Qx7secret";
const absl::Time kOutcomeNow = absl::FromUnixSeconds(1'800'000'000);

Outcome Judge(int status, const std::string& retry_after = "", const std::string& body = "") {
  return JudgeReply({.status = status, .body = body, .retry_after = retry_after}, kUrl,
                    kOutcomeNow);
}

TEST(Outcome, OfHttpIsDeliveredAgainOrRefused) {
  for (const int status : {200, 201, 202, 204}) {
    EXPECT_EQ(Judge(status).kind, Outcome::kDelivered) << status;
  }
  for (const int status : {0, 408, 425, 429, 500, 502, 503, 504, 599}) {
    EXPECT_EQ(Judge(status).kind, Outcome::kAgain) << status;
  }
  for (const int status : {301, 302, 307, 400, 401, 403, 404, 410, 413, 600}) {
    EXPECT_EQ(Judge(status).kind, Outcome::kRefused) << status;
  }
  EXPECT_EQ(JudgeReply({.status = 200, .fault = "cut off"}, kUrl, kOutcomeNow).kind,
            Outcome::kDelivered)
      << "it was taken before the answer was cut off";
}

TEST(Outcome, RetryAfterIsObeyedWithin429And503AndLimited) {
  EXPECT_EQ(Judge(429, "7").wait, absl::Seconds(7));
  EXPECT_EQ(Judge(503, "120").wait, absl::Minutes(2));
  EXPECT_EQ(Judge(429, "99999999").wait, kLongestAsked);
  EXPECT_EQ(Judge(500, "7").wait, std::nullopt);
  EXPECT_EQ(Judge(429, "soon").wait, std::nullopt);
}

TEST(Outcome, SaysAShortPlainAnswerAndNeverTheUrl) {
  EXPECT_EQ(Judge(404, "", "no_service\n").said, "HTTP 404: no_service");
  EXPECT_EQ(Judge(404, "", "Cannot POST /services/T0SECRET/B1").said, "HTTP 404");
  EXPECT_EQ(Judge(404, "", "no such token qx7SECRET").said, "HTTP 404") << "in another case";
  EXPECT_EQ(Judge(500, "", "<html>").said, "HTTP 500");
  EXPECT_EQ(Judge(500, "", std::string(200, 'x')).said, "HTTP 500");
  EXPECT_THAT(Judge(302).said, HasSubstr("redirects are not followed"));
  const HttpReply failed = {.fault = std::string("bad URL ") + kUrl + " \x1b[2J"};
  EXPECT_EQ(JudgeReply(failed, kUrl, kOutcomeNow).said, "bad URL the address \\x1b[2J");
  EXPECT_THAT(JudgeReply({.refused_address = true}, kUrl, kOutcomeNow).said,
              HasSubstr("allowed_urls"));
}

TEST(Outcome, OfAMailProgramFollowsItsExitCode) {
  EXPECT_EQ(JudgeExit(0, "").kind, Outcome::kDelivered);
  for (const int code : {65, 67, 68})
    EXPECT_EQ(JudgeExit(code, "").kind, Outcome::kRefused) << code;
  for (const int code : {1, 69, 71, 75, 126, 127}) {
    EXPECT_EQ(JudgeExit(code, "").kind, Outcome::kAgain) << code;
  }
  EXPECT_EQ(JudgeExit(75, "queue\nfull\n").said, "exit code 75: queue\\nfull");
  EXPECT_THAT(JudgeExit(75, std::string(9'000, 'x')).said, ::testing::SizeIs(::testing::Lt(400u)));
}

TEST(Outcome, PausesDoubleUpToFiveMinutesAndAreSpread) {
  const Outcome plain = {.kind = Outcome::kAgain};
  EXPECT_EQ(PauseAfter(1, 0.5, plain), absl::Seconds(1));
  EXPECT_EQ(PauseAfter(2, 0.5, plain), absl::Seconds(2));
  EXPECT_EQ(PauseAfter(6, 0.5, plain), absl::Seconds(32));
  EXPECT_EQ(PauseAfter(10, 0.5, plain), absl::Minutes(5));
  EXPECT_EQ(PauseAfter(1'000'000, 0.5, plain), absl::Minutes(5));
  EXPECT_EQ(PauseAfter(1, 0, plain), absl::Milliseconds(750));
  EXPECT_LE(PauseAfter(1, 0.999, plain), absl::Milliseconds(1'250));
  EXPECT_EQ(PauseAfter(1, 0.5, {.kind = Outcome::kAgain, .wait = absl::Minutes(3)}),
            absl::Minutes(3));
  EXPECT_EQ(PauseAfter(9, 0.5, {.kind = Outcome::kAgain, .wait = absl::Seconds(3)}),
            absl::Seconds(256));
}

TEST(Outcome, AnEventIsGivenUpAfterADayOfWhichTheLastHourFailed) {
  EXPECT_FALSE(IsGivenUp(absl::Hours(23), absl::Hours(23)));
  EXPECT_TRUE(IsGivenUp(absl::Hours(25), absl::Hours(25)));
  EXPECT_FALSE(IsGivenUp(absl::Hours(25), absl::Minutes(59))) << "the coordinator was down";
  EXPECT_FALSE(IsGivenUp(-absl::Hours(25), absl::Hours(2))) << "a clock ahead of ours";
}

}  // namespace
}  // namespace nsa::server
