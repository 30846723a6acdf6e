// Where requests may go: redirects, addresses, and the token.
#include <netinet/in.h>

#include <string>

#include "common/http/public_address.h"
#include "gmock/gmock.h"
#include "tests/worker/train/data/remote/remote_fixture.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Request = DataServer::Request;
using Reply = DataServer::Reply;

const std::string kRedirected = Content(3500);

Reply RedirectTo(const std::string& place) {
  return {.status = 302, .headers = {{"Location", place}}};
}

TEST(Redirect, IsFollowedOnTheSameHostAndToAnother) {
  DataServer other([](const Request& request) { return DataServer::Serve(request, kRedirected); });
  DataServer server([&](const Request& request) {
    if (request.target == "/a.txt") return RedirectTo("/b.txt");
    if (request.target == "/b.txt") return RedirectTo(other.url("/c.txt"));
    return Reply{.status = 404};
  });
  EXPECT_EQ(*ReadAll(server.url("/a.txt"), QuickOptions()), kRedirected);
  EXPECT_EQ(other.seen().front().target, "/c.txt");
}

// The Hub counts requests, so each block goes directly to where the first request was sent.
class PlaceOfARedirect : public testing::TestWithParam<int> {};

TEST_P(PlaceOfARedirect, APlaceThatIsGoneOrSickIsAskedForAgain) {
  DataServer* self = nullptr;
  DataServer server([&](const Request& request) {
    if (request.target == "/a.txt") {
      return RedirectTo(self->url(absl::StrCat("/at/", request.number)));
    }
    if (request.number == 5) return Reply{.status = GetParam()};
    return DataServer::Serve(request, kRedirected);
  });
  self = &server;
  RemoteOptions options = QuickOptions();
  options.blocks_ahead = 0;
  EXPECT_EQ(*ReadAll(server.url("/a.txt"), options), kRedirected);
  std::vector<std::string> targets;
  for (const Request& request : server.seen()) targets.push_back(request.target);
  // The look, then the first block; the second block goes on directly and finds its place gone.
  EXPECT_THAT(targets, testing::ElementsAre("/a.txt", "/at/1", "/a.txt", "/at/3", "/at/3", "/a.txt",
                                            "/at/6", "/at/6", "/at/6"));
}

// No longer valid, and a server that is down.
INSTANTIATE_TEST_SUITE_P(All, PlaceOfARedirect, testing::Values(403, 503));

TEST(Redirect, ToItselfEnds) {
  DataServer server([](const Request&) { return RedirectTo("/a.txt"); });
  EXPECT_THAT(ReadAll(server.url("/a.txt"), QuickOptions()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/a.txt: more than 5 redirects"))));
  EXPECT_EQ(server.seen().size(), 6u);
}

TEST(Redirect, WithoutAPlaceIsAnError) {
  for (const char* place : {"", "file:///etc/passwd", "ftp://127.0.0.1/x", "http://u:secret@h/"}) {
    DataServer server([&](const Request&) { return RedirectTo(place); });
    EXPECT_THAT(ReadAll(server.url("/a.txt"), QuickOptions()),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("HTTP 302 without a Location"), Not(HasSubstr("secret")))))
        << place;
  }
}

// Addresses that a redirect leads to have signatures in them, which open the file to
// every reader of the log.
TEST(Redirect, ThePlaceIsNotShown) {
  DataServer other([](const Request&) { return Reply{.status = 400}; });
  DataServer server([&](const Request&) { return RedirectTo(other.url("/x?sig=secret")); });
  EXPECT_THAT(ReadAll(server.url("/a.txt"), QuickOptions()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(server.url("/a.txt")), Not(HasSubstr("secret")))));
}

RemoteOptions Allowing(const std::vector<std::string>& allowed) {
  RemoteOptions options = QuickOptions();
  options.policy = *UrlPolicy::Make(allowed);
  return options;
}

TEST(Address, OfThisMachineIsRefusedUnlessItsHostIsAllowed) {
  DataServer server([](const Request& request) { return DataServer::Serve(request, kRedirected); });
  EXPECT_THAT(
      ReadAll(server.url("/a.txt"), Allowing({"http://"})),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr("an address that is not public"), HasSubstr("allowed_urls"))));
  EXPECT_TRUE(server.seen().empty());
  EXPECT_EQ(*ReadAll(server.url("/a.txt"), Allowing({server.url("/")})), kRedirected);
}

TEST(Address, IsLookedAtBehindItsName) {
  DataServer server([](const Request& request) { return DataServer::Serve(request, kRedirected); });
  const std::string url = absl::StrCat("http://localhost:", server.port(), "/a.txt");
  EXPECT_THAT(
      ReadAll(url, Allowing({"http://"})),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("localhost is at an address")));
  EXPECT_TRUE(server.seen().empty());
}

TEST(Address, OfARedirectIsLookedAtToo) {
  DataServer inner([](const Request& request) { return DataServer::Serve(request, kRedirected); });
  DataServer server([&](const Request& request) {
    if (request.target.starts_with("/other")) return DataServer::Serve(request, kRedirected);
    return RedirectTo(request.target == "/a.txt" ? inner.url("/") : "/other");
  });
  const RemoteOptions options = Allowing({server.url("/a"), server.url("/b")});
  EXPECT_THAT(ReadAll(server.url("/a.txt"), options),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_TRUE(inner.seen().empty());
  // The same host, beside what is allowed.
  EXPECT_THAT(ReadAll(server.url("/b.txt"), options),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(Address, AUrlThatIsNotAllowedIsNotAskedFor) {
  DataServer server([](const Request& request) { return DataServer::Serve(request, kRedirected); });
  EXPECT_THAT(ReadAll(server.url("/a.txt"), Allowing({"https://"})),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/a.txt: is not among")));
  EXPECT_TRUE(server.seen().empty());
}

bool IsPublic(const std::string& text) {
  sockaddr_in four{.sin_family = AF_INET};
  sockaddr_in6 six{.sin6_family = AF_INET6};
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    return IsPublicAddress(reinterpret_cast<const sockaddr&>(four));
  }
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &six.sin6_addr), 1) << text;
  return IsPublicAddress(reinterpret_cast<const sockaddr&>(six));
}

TEST(Address, IsPublicOrNot) {
  for (const char* text :
       {"8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "192.167.0.1", "2606:4700::1",
        "2002:808:808::1", "::ffff:8.8.8.8", "64:ff9b::808:808"}) {
    EXPECT_TRUE(IsPublic(text)) << text;
  }
  for (const char* text : {"127.0.0.1",
                           "127.9.9.9",
                           "10.1.2.3",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.168.1.1",
                           "169.254.169.254",
                           "100.64.0.1",
                           "0.0.0.0",
                           "224.0.0.1",
                           "255.255.255.255",
                           "::1",
                           "::",
                           "fe80::1",
                           "fc00::1",
                           "fd12::1",
                           "ff02::1",
                           "::ffff:127.0.0.1",
                           "::ffff:10.0.0.1",
                           "64:ff9b::a00:1",
                           "2002:a00:1::1",
                           "2001::1"}) {
    EXPECT_FALSE(IsPublic(text)) << text;
  }
}

}  // namespace
}  // namespace nsa::train
