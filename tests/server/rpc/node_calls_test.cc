// Cordons and drains over gRPC: who may, what is noted, what the page and the metrics show.
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class NodeCallsTest : public ServerTest {
 protected:
  v1::CordonNodeRequest Drain(const std::string& node) {
    v1::CordonNodeRequest request;
    request.set_node(node);
    request.set_drain(true);
    request.set_reason("new kernel");
    return request;
  }

  absl::Status CordonAs(const std::string& secret, const v1::CordonNodeRequest& request) {
    const auto tcp = v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
    const auto context = MakeContext(kTimeout, secret);
    v1::CordonNodeResponse response;
    return FromGrpc(tcp->CordonNode(context.get(), request, &response));
  }

  std::string MakeToken(v1::Role role, const std::string& name) {
    v1::CreateTokenRequest request;
    request.set_role(role);
    request.set_name(name);
    const auto made = Call<v1::CreateTokenResponse>(&v1::CoordinatorService::Stub::CreateToken,
                                                    people_.get(), request);
    EXPECT_OK(made.status());
    return made.ok() ? made->secret() : "";
  }

  absl::StatusOr<v1::ListNodesResponse> Nodes() {
    return Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes, people_.get(),
                                       v1::ListNodesRequest());
  }
};

TEST_F(NodeCallsTest, OnlyOperatorsCordonAndEveryAttemptIsNoted) {
  FakeAgent agent("a", 1, Wire());
  ASSERT_OK(agent.Beat());
  const auto denied = StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("role operator"));
  EXPECT_THAT(CordonAs(MakeToken(v1::ROLE_SUBMITTER, "ada"), Drain("a")), denied);
  EXPECT_THAT(CordonAs(MakeToken(v1::ROLE_VIEWER, "eve"), Drain("a")), denied);
  EXPECT_FALSE(Nodes()->nodes(0).has_cordon());
  EXPECT_OK(CordonAs(MakeToken(v1::ROLE_OPERATOR, "olga"), Drain("a")));
  const v1::NodeCordon cordon = Nodes()->nodes(0).cordon();
  EXPECT_EQ(cordon.by(), "olga");
  EXPECT_TRUE(cordon.drain());
  v1::UncordonNodeRequest uncordon;
  uncordon.set_node("a");
  EXPECT_OK(Call<v1::UncordonNodeResponse>(&v1::CoordinatorService::Stub::UncordonNode,
                                           people_.get(), uncordon)
                .status());
  EXPECT_FALSE(Nodes()->nodes(0).has_cordon());
  const auto audit = Call<v1::ListAuditResponse>(&v1::CoordinatorService::Stub::ListAudit,
                                                 people_.get(), v1::ListAuditRequest());
  ASSERT_OK(audit);
  std::vector<std::string> lines;
  for (const v1::AuditEntry& entry : audit->entries()) {
    lines.push_back(
        absl::StrCat(entry.who(), " ", entry.what(), " ", entry.subject(), " ", entry.result()));
  }
  EXPECT_THAT(lines, AllOf(Contains("olga CordonNode a OK"), Contains("local UncordonNode a OK")));
}

TEST_F(NodeCallsTest, AMachineThatIsDeadStaysKnownOverARestartUntilItsSecretIsRevoked) {
  metrics_address_ = "127.0.0.1:0";
  unknown_soon_ = true;
  Restart();
  FakeAgent agent("a", 2, Wire());
  ASSERT_OK(agent.Beat());
  const auto shows = [&](const std::string& line) {
    return absl::StrContains(HttpGet(server_->metrics_address(), "/metrics"), line);
  };
  EXPECT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return shows("nsa_agent_up{agent=\"a\"} 1");
  }));
  Restart();
  ASSERT_EQ(Nodes()->nodes_size(), 1);
  EXPECT_EQ(Nodes()->nodes(0).state(), "ABSENT");
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return shows("nsa_agent_up{agent=\"a\"} 0"); }));
  EXPECT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Nodes()->nodes(0).state() == "READY";
  }));

  v1::JoinRequest join;
  join.set_node("a");
  join.set_secret_sha256(std::string(32, 's'));
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    return Call<v1::JoinResponse>(&v1::FleetService::Stub::Join, agents_.get(), join).ok();
  })) << "once the agent without a secret is silent";
  Restart();
  EXPECT_EQ(Nodes()->nodes(0).state(), "ABSENT");
  v1::RevokeTokenRequest revoke;
  revoke.set_token("a");
  ASSERT_OK(Call<v1::RevokeTokenResponse>(&v1::CoordinatorService::Stub::RevokeToken, people_.get(),
                                          revoke)
                .status());
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return Nodes()->nodes().empty(); }));
  Restart();
  EXPECT_TRUE(Nodes()->nodes().empty());
}

TEST_F(NodeCallsTest, MetricsAndThePageShowCordonedMachines) {
  metrics_address_ = "127.0.0.1:0";
  Restart();
  FakeAgent agent("a", 2, Wire());
  ASSERT_OK(agent.Beat());
  ASSERT_OK(Call<v1::CordonNodeResponse>(&v1::CoordinatorService::Stub::CordonNode, people_.get(),
                                         Drain("a"))
                .status());
  EXPECT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    const std::string text = HttpGet(server_->metrics_address(), "/metrics");
    return absl::StrContains(text, "nsa_agent_cordoned{agent=\"a\"} 1") &&
           absl::StrContains(text, "nsa_slots{kind=\"cpu\",state=\"cordoned\"} 2") &&
           absl::StrContains(text, "nsa_slots{kind=\"cpu\",state=\"free\"} 0");
  }));
  EXPECT_THAT(
      HttpGet(server_->metrics_address(), "/api/v1/fleet"),
      AllOf(HasSubstr("\"cordon\":\"DRAINED\""), HasSubstr("drained by local (new kernel)")));
  Restart();
  EXPECT_TRUE(Nodes()->nodes(0).cordon().drain()) << "it was on disk";
}

}  // namespace
}  // namespace nsa::server
