#include "server/rpc/gate/callers.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/auth.h"

namespace nsa::server {
namespace {

TEST(TcpCallers, AreKnownByTheirAddressAndNeverLocal) {
  const auto caller = std::make_shared<GateCaller>();
  caller->certificate_name = "node-7";
  std::string peer;
  {
    const GateCallerName name("ipv4:10.0.0.7:51234", caller);
    peer = absl::StrCat("unix-abstract:", name.name());
    EXPECT_EQ(OriginOf(peer), "ipv4:10.0.0.7:51234");
    EXPECT_FALSE(IsLocal(peer));
    EXPECT_FALSE(IsLocal(OriginOf(peer)));
    ASSERT_NE(FindGateCaller(peer), nullptr);
    EXPECT_EQ(FindGateCaller(peer)->certificate_name, "node-7");
  }
  EXPECT_EQ(FindGateCaller(peer), nullptr) << "it has gone";
  EXPECT_EQ(OriginOf(peer), "ipv4:10.0.0.7:51234");
}

TEST(TcpCallers, ANameIsNeverUsedAgain) {
  const auto caller = std::make_shared<GateCaller>();
  std::string first;
  {
    const GateCallerName name("ipv4:10.0.0.7:51234", caller);
    first = name.name();
  }
  EXPECT_NE(GateCallerName("ipv4:10.0.0.7:51234", caller).name(), first);
}

TEST(TcpCallers, AFalseNameIsNobodysAndNotLocal) {
  for (const char* peer :
       {"unix-abstract:nsa-gate-0-0/unix:/run/x", "unix-abstract:unix:", "unix-abstract:"}) {
    EXPECT_EQ(OriginOf(peer), peer);
    EXPECT_FALSE(IsLocal(OriginOf(peer)));
    EXPECT_EQ(FindGateCaller(peer), nullptr);
  }
  EXPECT_TRUE(IsLocal("unix:"));
  EXPECT_TRUE(IsLocal("unix:/run/nsa/coordinator.sock"));
}

TEST(TcpCallers, NeedATokenForEveryMethod) {
  const Auth auth = Auth::WithoutFile(nullptr);
  const GateCallerName name("ipv4:127.0.0.1:1", std::make_shared<GateCaller>());
  for (const std::string& peer : {absl::StrCat("unix-abstract:", name.name()),
                                  OriginOf(absl::StrCat("unix-abstract:", name.name()))}) {
    for (const char* method : {"ListJobs", "SubmitJob", "CreateToken", "Heartbeat"}) {
      EXPECT_TRUE(absl::IsUnauthenticated(auth.Check({.peer = peer}, method).status())) << method;
    }
    const auto joining = auth.Check({.peer = peer}, "Join");
    ASSERT_TRUE(joining.ok());
    EXPECT_FALSE(joining->local);
  }
  EXPECT_TRUE(auth.Check({.peer = "unix:"}, "ListJobs").ok());
}

}  // namespace
}  // namespace nsa::server
