// What a web server may do wrong, and what the user then sees.
#include "worker/train/data/remote/fetch.h"

#include <algorithm>
#include <string>

#include "common/base/clock.h"
#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "tests/worker/train/data/remote/remote_fixture.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

const std::string kFetched = Content(3500);

// Reads /a.txt of a server that answers so.
absl::StatusOr<std::string> ReadFrom(DataServer& server, RemoteOptions options = QuickOptions()) {
  return ReadAll(server.url("/a.txt"), std::move(options));
}

// Expects an error with this code, whose message names the file and says `why`.
void ExpectError(DataServer& server, absl::StatusCode code, const std::string& why,
                 RemoteOptions options = QuickOptions()) {
  EXPECT_THAT(ReadFrom(server, std::move(options)),
              StatusIs(code, AllOf(HasSubstr(server.url("/a.txt")), HasSubstr(why))));
}

TEST(Fetch, AFileIsReadByRequestsOfOneBlock) {
  DataServer server([](const Request& request) { return DataServer::Serve(request, kFetched); });
  EXPECT_EQ(*ReadFrom(server), kFetched);
  const auto seen = server.seen();
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen[0].header("range"), "bytes=0-0");
  EXPECT_EQ(seen[1].header("range"), "bytes=0-999");
  EXPECT_EQ(seen[4].header("range"), "bytes=3000-3499");
  EXPECT_EQ(seen[0].header("accept-encoding"), "identity");
  EXPECT_EQ(seen[0].header("authorization"), "");
}

TEST(Fetch, AnEmptyFileHasNoBytes) {
  DataServer server([](const Request& request) { return DataServer::Serve(request, ""); });
  EXPECT_EQ(*ReadFrom(server), "");
}

TEST(Fetch, A503IsTriedAgain) {
  DataServer server([](const Request& request) {
    if (request.number % 3 != 0) return Reply{.status = 503};
    return DataServer::Serve(request, kFetched);
  });
  EXPECT_EQ(*ReadFrom(server), kFetched);
}

TEST(Fetch, AConnectionThatClosesIsTriedAgain) {
  DataServer server([](const Request& request) {
    if (request.number % 2 != 0) return Reply{.hang_up = true};
    return DataServer::Serve(request, kFetched);
  });
  EXPECT_EQ(*ReadFrom(server), kFetched);
}

TEST(Fetch, AServerThatNeverWorksIsGivenUpOnWithItsLastWords) {
  DataServer server([](const Request&) { return Reply{.status = 500}; });
  RemoteOptions options = QuickOptions();
  options.patience = absl::Seconds(3);
  const auto read = ReadFrom(server, options);
  EXPECT_THAT(read, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("/a.txt: no byte for "),
                                   HasSubstr("data.loader_timeout_seconds"),
                                   HasSubstr("the last one: HTTP 500"))));
  EXPECT_EQ(ReasonOf(read.status()), Reason::kDataStalled);
  EXPECT_GE(server.seen().size(), 2u);
}

TEST(Fetch, NobodyListensIsGivenUpOn) {
  const Fd bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // nobody else gets its port
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(bound.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string url = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port), "/a.txt");
  RemoteOptions options = QuickOptions();
  options.patience = absl::Milliseconds(100);
  EXPECT_THAT(ReadAll(url, options),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(url), HasSubstr("overloaded or unreachable"))));
}

// A mistyped name is reported at once, and not after all the patience for a server that is there. A
// part of a name that is longer than 63 characters has no address, and no name server is asked.
TEST(Fetch, AHostThatNobodyKnowsIsGivenUpOnSoon) {
  RemoteOptions options = QuickOptions();
  options.patience = absl::Minutes(5);
  const std::string url = "http://" + std::string(70, 'x') + ".invalid/a.txt";
  const absl::Duration begin = RealClock().Monotonic();
  const auto read = ReadAll(url, options);
  EXPECT_THAT(read,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(url + ": "), HasSubstr("correct the name of the host"))));
  EXPECT_EQ(ReasonOf(read.status()), Reason::kDataStalled);
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Minutes(1));
}

TEST(Fetch, RetryAfterIsObeyed) {
  for (const int status : {429, 503}) {
    const absl::Duration begin = RealClock().Monotonic();
    DataServer server([status](const Request& request) {
      if (request.number == 1) return Reply{.status = status, .headers = {{"Retry-After", "1"}}};
      return DataServer::Serve(request, kFetched);
    });
    EXPECT_EQ(*ReadFrom(server), kFetched);
    EXPECT_GE(RealClock().Monotonic() - begin, absl::Seconds(1));
  }
}

TEST(Fetch, A429WithoutRetryAfterIsTriedSoon) {
  const absl::Duration begin = RealClock().Monotonic();
  DataServer server([](const Request& request) {
    if (request.number <= 2) return Reply{.status = 429};
    return DataServer::Serve(request, kFetched);
  });
  EXPECT_EQ(*ReadFrom(server), kFetched);
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(20));
}

TEST(Fetch, ARetryAfterBeyondOurPatienceEndsAtOnce) {
  DataServer server([](const Request&) {
    return Reply{.status = 429, .headers = {{"Retry-After", "3600"}}};
  });
  const absl::Duration begin = RealClock().Monotonic();
  ExpectError(server, absl::StatusCode::kDeadlineExceeded,
              "HTTP 429, and the server asks to wait 3600 s");
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Minutes(1));
  EXPECT_EQ(server.seen().size(), 1u);
}

// Every answer has half of what it promises; each half is kept.
TEST(Fetch, ATruncatedAnswerIsContinuedWhereItEnded) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    reply.promised = std::ssize(reply.body);
    if (reply.body.size() > 100) reply.body.resize(reply.body.size() / 2);
    return reply;
  });
  EXPECT_EQ(*ReadFrom(server), kFetched);
  EXPECT_EQ(server.seen()[2].header("range"), "bytes=500-999");
}

TEST(Fetch, AnAnswerThatIsAlwaysTruncatedToNothingIsAnError) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    reply.promised = std::ssize(reply.body);
    if (request.number > 1) reply.body.clear();
    return reply;
  });
  RemoteOptions options = QuickOptions();
  options.patience = absl::Milliseconds(100);
  ExpectError(server, absl::StatusCode::kDeadlineExceeded, "0 of 1000 bytes", options);
}

TEST(Fetch, AServerThatStallsIsAskedAgain) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    if (request.number == 2) reply.stall = absl::Minutes(10);
    return reply;
  });
  RemoteOptions options = QuickOptions();
  options.stall = absl::Milliseconds(500);
  const absl::Duration begin = RealClock().Monotonic();
  EXPECT_EQ(*ReadFrom(server, options), kFetched);
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Minutes(1));
  const auto asks_for_the_rest = [](const Request& request) {
    return request.header("range") == "bytes=500-999";
  };
  EXPECT_TRUE(std::ranges::any_of(server.seen(), asks_for_the_rest)) << "half had arrived";
}

TEST(Fetch, AnAnswerLongerThanItsRangeIsRefused) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    if (request.number > 1) reply.body += "more";
    return reply;
  });
  ExpectError(server, absl::StatusCode::kDataLoss,
              "an answer with more bytes than it promises, in 3 attempts");
}

TEST(Fetch, AnAnswerWithAnotherRangeIsRefused) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    if (request.number > 1) reply.headers.back().second = "bytes 7-1006/3500";
    return reply;
  });
  ExpectError(server, absl::StatusCode::kDataLoss,
              "Content-Range 'bytes 7-1006/3500' (bytes 0-999 were asked for)");
}

TEST(Fetch, AnAnswerWithoutARangeIsRefused) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    if (request.number > 1) reply.headers.pop_back();
    return reply;
  });
  ExpectError(server, absl::StatusCode::kDataLoss, "Content-Range ''");
}

TEST(Fetch, AnEncodingThatNobodyAskedForIsRefused) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched);
    reply.headers.emplace_back("Content-Encoding", "gzip");
    return reply;
  });
  ExpectError(server, absl::StatusCode::kDataLoss, "Content-Encoding gzip");
}

TEST(Fetch, AServerThatIgnoresRangesIsFineForASmallFile) {
  const std::string small = Content(900);
  DataServer server([&](const Request&) { return Reply{.body = small}; });
  EXPECT_EQ(*ReadFrom(server), small);
  EXPECT_EQ(server.seen().size(), 1u);
}

TEST(Fetch, AServerThatIgnoresRangesIsRefusedForALargeFile) {
  DataServer server([](const Request&) { return Reply{.body = kFetched}; });
  ExpectError(server, absl::StatusCode::kFailedPrecondition,
              "the server ignores requests for a range");
}

TEST(Fetch, AServerThatBeginsToIgnoreRangesIsRefused) {
  DataServer server([](const Request& request) {
    if (request.number > 1) return Reply{.body = kFetched};
    return DataServer::Serve(request, kFetched);
  });
  ExpectError(server, absl::StatusCode::kDataLoss, "HTTP 200, the whole file");
}

TEST(Fetch, AFileThatChangesIsNoticedByItsETag) {
  DataServer server([](const Request& request) {
    return DataServer::Serve(request, kFetched, request.number < 4 ? "\"one\"" : "\"two\"");
  });
  ExpectError(server, absl::StatusCode::kFailedPrecondition,
              "changed while it was read (ETag \"two\" was \"one\")");
}

TEST(Fetch, AFileThatChangesIsNoticedByItsDate) {
  DataServer server([](const Request& request) {
    Reply reply = DataServer::Serve(request, kFetched, "");
    reply.headers.emplace_back("Last-Modified", request.number < 4 ? "Monday" : "Tuesday");
    return reply;
  });
  ExpectError(server, absl::StatusCode::kFailedPrecondition,
              "changed while it was read (Last-Modified Tuesday was Monday)");
}

TEST(Fetch, AFileThatChangesIsNoticedByItsLength) {
  DataServer server([](const Request& request) {
    return DataServer::Serve(request, request.number < 4 ? kFetched : kFetched + "x", "");
  });
  ExpectError(server, absl::StatusCode::kFailedPrecondition,
              "changed while it was read (3501 bytes were 3500)");
}

TEST(Fetch, AFileThatBecomesShorterIsNoticed) {
  DataServer server([](const Request& request) {
    return DataServer::Serve(request, request.number < 4 ? kFetched : "short", "");
  });
  ExpectError(server, absl::StatusCode::kFailedPrecondition, "5 bytes were 3500");
}

TEST(Fetch, AWeakETagIsTheSameVersion) {
  DataServer server([](const Request& request) {
    return DataServer::Serve(request, kFetched, request.number % 2 != 0 ? "W/\"one\"" : "\"one\"");
  });
  EXPECT_EQ(*ReadFrom(server), kFetched);
}

TEST(Fetch, AMissingFileIsNotFoundAtOnce) {
  DataServer server([](const Request&) { return Reply{.status = 404, .body = "no"}; });
  ExpectError(server, absl::StatusCode::kNotFound, "HTTP 404 (not found); correct the URL");
  EXPECT_EQ(server.seen().size(), 1u);
}

TEST(Fetch, AFileBehindALoginIsRefusedAtOnce) {
  for (const int status : {401, 403}) {
    DataServer server([status](const Request&) { return Reply{.status = status}; });
    ExpectError(
        server, absl::StatusCode::kPermissionDenied,
        absl::StrCat("HTTP ", status, " (not allowed); it must be readable without a login"));
    EXPECT_EQ(server.seen().size(), 1u);
  }
}

TEST(Fetch, AnotherStatusIsRefusedAtOnce) {
  DataServer server([](const Request&) { return Reply{.status = 400}; });
  ExpectError(server, absl::StatusCode::kFailedPrecondition, "HTTP 400");
  EXPECT_EQ(server.seen().size(), 1u);
}

TEST(Fetch, ReadingEndsSoonWhenNobodyWaits) {
  DataServer server([](const Request&) { return Reply{.status = 503}; });
  ReadProgress progress;
  RemoteOptions options = QuickOptions();
  options.patience = absl::Minutes(5);
  options.first_pause = options.longest_pause = absl::Minutes(1);
  progress.remote = std::make_shared<Remote>(options);
  std::thread waiter([&] {
    absl::SleepFor(absl::Milliseconds(100));
    progress.cancelled = true;
  });
  const absl::Duration begin = RealClock().Monotonic();
  EXPECT_THAT(DataFile::Open(server.url("/a.txt"), &progress),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(RealClock().Monotonic() - begin, absl::Seconds(25)) << "the pause is at least 30 s";
  waiter.join();
}

}  // namespace
}  // namespace nsa::train
