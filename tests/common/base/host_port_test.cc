#include "common/base/host_port.h"

#include "absl/strings/str_cat.h"
#include "common/base/listen.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseHostPort, RefusesWhatIsNoAddress) {
  for (const char* bad :
       {"", "127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:-1", "foo", "127.0.0.1:", ":50951",
        "50951", "::1", "::1:50951", "[::1]", "[]:1", "127.0.0.1:50951x", "127.0.0.1: 5",
        "127.0.0.1:999999999999", "unix:/x.sock", "http://127.0.0.1:1", "a:1,b:2", "[::1]]:1"}) {
    EXPECT_THAT(ParseHostPort("listen_address", bad).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith(absl::StrCat("listen_address: '", bad, "' (HOST:PORT"))));
  }
}

TEST(ParseHostPort, TakesAnAddressApart) {
  for (const char* good : {"127.0.0.1:0", "127.0.0.1:65535", "localhost:1"}) {
    ASSERT_OK(ParseHostPort("x", good).status());
    EXPECT_EQ(ParseHostPort("x", good)->host + ":" + ParseHostPort("x", good)->port, good);
  }
  ASSERT_OK(ParseHostPort("x", "[::1]:50951").status());
  EXPECT_EQ(ParseHostPort("x", "[::1]:50951")->host, "::1");
  EXPECT_EQ(ParseHostPort("x", "[::1]:50951")->port, "50951");
}

TEST(ParseLoopback, TakesThisMachineByIpv4Only) {
  for (const char* good : {"127.0.0.1:8000", "localhost:8000", "LocalHost:8000"}) {
    const auto at = ParseLoopback("--listen", good);
    ASSERT_OK(at.status());
    EXPECT_EQ(at->host, "127.0.0.1");
    EXPECT_EQ(at->port, "8000");
  }
  EXPECT_THAT(ParseLoopback("--listen", "lab:80").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--listen: 'lab:80' (127.0.0.1 or localhost)")));
  EXPECT_THAT(ParseLoopback("--listen", "[::1]:80").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("take 127.0.0.1:80")));
  EXPECT_THAT(ParseLoopback("--listen", "abc").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("--listen: 'abc' (HOST")));
}

TEST(ConnectTo, ConnectsWhereSomebodyListens) {
  auto listeners = ListenOnAll("x", "127.0.0.1:0");
  ASSERT_OK(listeners.status());
  const HostPort at{.host = "127.0.0.1", .port = absl::StrCat(PortOf((*listeners)[0].get()))};
  const auto found = AddressesOf(at);
  ASSERT_OK(found.status());
  const auto connects = [&] {
    return ConnectTo((*found)->ai_addr, (*found)->ai_addrlen, absl::Seconds(5)).valid();
  };
  EXPECT_TRUE(connects());
  const std::string taken = at.host + ":" + at.port;
  EXPECT_THAT(ListenOnAll("x", taken).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(taken + " cannot be")));
  EXPECT_OK(ListenOnAll("x", taken, /*any_port=*/true).status());
  listeners->clear();
  EXPECT_FALSE(connects());
}

TEST(AddressesOf, SaysWhyAHostHasNoAddress) {
  EXPECT_THAT(AddressesOf({.host = "no-such-host.invalid", .port = "1"}).status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace nsa
