// Who speaks for a node: nobody is believed for a name.
#include <unistd.h>

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/rpc/secret.h"
#include "server/rpc/gate/unix_peer.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class IdentityTest : public ServerTest {
 protected:
  template <typename Response, typename Method, typename Stub, typename Request>
  absl::StatusOr<Response> CallAs(const std::string& secret, Method method, Stub* stub,
                                  const Request& request) {
    const auto context = MakeContext(kTimeout, secret);
    Response response;
    const grpc::Status status = (stub->*method)(context.get(), request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  absl::Status Join(v1::FleetService::Stub* stub, const std::string& node,
                    const std::string& secret, const std::string& join_token = "") {
    v1::JoinRequest request;
    request.set_node(node);
    request.set_join_token(join_token);
    request.set_secret_sha256(Sha256(secret));
    return CallAs<v1::JoinResponse>("", &v1::FleetService::Stub::Join, stub, request).status();
  }

  absl::StatusOr<v1::HeartbeatResponse> Beat(v1::FleetService::Stub* stub, const std::string& node,
                                             const std::string& secret,
                                             const std::string& incarnation) {
    v1::HeartbeatRequest request;
    request.mutable_node()->set_name(node);
    request.set_incarnation(incarnation);
    return CallAs<v1::HeartbeatResponse>(secret, &v1::FleetService::Stub::Heartbeat, stub, request);
  }

  // An agent over the unix socket that sends this secret.
  FakeAgent::Wire WireAs(const std::string& secret) {
    return {.heartbeat =
                [this, secret](const v1::HeartbeatRequest& request) {
                  return CallAs<v1::HeartbeatResponse>(secret, &v1::FleetService::Stub::Heartbeat,
                                                       agents_.get(), request);
                },
            .records =
                [this, secret](const v1::ReportRecordsRequest& request) {
                  return CallAs<v1::ReportRecordsResponse>(
                      secret, &v1::FleetService::Stub::ReportRecords, agents_.get(), request);
                },
            .dump =
                [this, secret](const v1::ReportDumpRequest& request) {
                  return CallAs<v1::ReportDumpResponse>(secret, &v1::FleetService::Stub::ReportDump,
                                                        agents_.get(), request);
                }};
  }

  absl::StatusOr<std::string> MakeToken(v1::Role role, const std::string& name,
                                        const std::string& node = "") {
    v1::CreateTokenRequest request;
    request.set_role(role);
    request.set_name(name);
    request.set_node(node);
    const auto made = Call<v1::CreateTokenResponse>(&v1::CoordinatorService::Stub::CreateToken,
                                                    people_.get(), request);
    if (!made.ok()) return made.status();
    return made->secret();
  }

  std::unique_ptr<v1::FleetService::Stub> TcpAgents() {
    return v1::FleetService::NewStub(*OpenChannel(server_->listen_address(), {}));
  }
  std::unique_ptr<v1::CoordinatorService::Stub> TcpPeople() {
    return v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
  }

  const std::string kSecret = "the-secret-of-node-a";
};

TEST_F(IdentityTest, AHeartbeatWithoutTheSecretOfItsNodeChangesNothing) {
  ASSERT_OK(Join(agents_.get(), "a", kSecret));
  FakeAgent agent("a", 1, WireAs(kSecret));
  const std::string id = Submit(Spec("demo"));
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(id).state() == Job::STATE_RUNNING;
  }));
  const auto tcp = TcpAgents();
  for (const auto& [stub, secret] :
       std::vector<std::pair<v1::FleetService::Stub*, std::string>>{{agents_.get(), ""},
                                                                    {agents_.get(), "a guess"},
                                                                    {tcp.get(), ""},
                                                                    {tcp.get(), "a guess"}}) {
    const auto reply = Beat(stub, "a", secret, "another");
    EXPECT_THAT(reply.status(), StatusIs(absl::StatusCode::kUnauthenticated));
  }
  EXPECT_THAT(Beat(tcp.get(), "a", Token(), "another").status(),
              StatusIs(absl::StatusCode::kPermissionDenied))
      << "the token of a client opens nothing for agents";
  EXPECT_OK(agent.Beat()) << "the real one is still believed";
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_EQ(Get(id).restarts(), 0);
}

TEST_F(IdentityTest, OverTheUnixSocketNobodyJoinsAsANodeWhoseAgentBeats) {
  ASSERT_OK(Join(agents_.get(), "a", kSecret));
  ASSERT_OK(Beat(agents_.get(), "a", kSecret, "1"));
  EXPECT_THAT(Join(agents_.get(), "a", "another-secret"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("node_name")));
  EXPECT_OK(Join(agents_.get(), "a", kSecret)) << "it may join again itself";
  Restart();
  EXPECT_THAT(Join(agents_.get(), "a", "another-secret"),
              StatusIs(absl::StatusCode::kFailedPrecondition))
      << "nor before the agent has had the time to send a heartbeat";
  EXPECT_OK(Beat(agents_.get(), "a", kSecret, "1"));
}

TEST_F(IdentityTest, AJoinTokenIsGoodOnceAndForItsNodeOnly) {
  const auto tcp = TcpAgents();
  EXPECT_THAT(Join(tcp.get(), "b", kSecret),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("nsactl token create")));
  EXPECT_THAT(Join(tcp.get(), "b", kSecret, Token()), StatusIs(absl::StatusCode::kUnauthenticated))
      << "a client's token is no join token";
  const auto token = MakeToken(v1::ROLE_AGENT, "", "b");
  ASSERT_OK(token);
  EXPECT_THAT(Join(tcp.get(), "c", kSecret, *token), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(Beat(tcp.get(), "b", *token, "1").status(),
              StatusIs(absl::StatusCode::kUnauthenticated))
      << "the join token itself is no secret";
  ASSERT_OK(Join(tcp.get(), "b", kSecret, *token));
  EXPECT_OK(Join(tcp.get(), "b", kSecret, *token)) << "sent again";
  EXPECT_THAT(Join(tcp.get(), "b", "another-secret", *token),
              StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_OK(Beat(tcp.get(), "b", kSecret, "1"));
  EXPECT_THAT(Beat(tcp.get(), "c", kSecret, "1").status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("node b")));
  Restart();
  EXPECT_OK(Beat(TcpAgents().get(), "b", kSecret, "1")) << "the secret survives a restart";
}

TEST_F(IdentityTest, TheSecretOfAnAgentDoesNotOpenTheServiceForPeople) {
  const auto token = MakeToken(v1::ROLE_AGENT, "", "b");
  ASSERT_OK(token);
  ASSERT_OK(Join(TcpAgents().get(), "b", kSecret, *token));
  EXPECT_THAT(CallAs<v1::ListJobsResponse>(kSecret, &v1::CoordinatorService::Stub::ListJobs,
                                           TcpPeople().get(), v1::ListJobsRequest())
                  .status(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("needs the role viewer"), HasSubstr("node b"))));
}

TEST_F(IdentityTest, RecordsAndLogsAreTakenOnlyFromTheNodeOfTheirRank) {
  const auto token = MakeToken(v1::ROLE_AGENT, "", "b");
  ASSERT_OK(token);
  ASSERT_OK(Join(agents_.get(), "a", kSecret));
  ASSERT_OK(Join(TcpAgents().get(), "b", "the-secret-of-node-b", *token));
  FakeAgent agent("a", 1, WireAs(kSecret));
  const std::string id = Submit(Spec("demo"));
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(id).state() == Job::STATE_RUNNING;
  }));
  v1::ReportRecordsRequest forged;
  forged.set_job_id(id);
  forged.set_generation(1);
  v1::WorkerRecord& record = *forged.add_records();
  record.set_sequence(static_cast<int64_t>(agent.Find(0)->records.size()) + 1);
  record.mutable_event()->set_reason("FORGED");
  v1::ReportLogRequest log;
  log.set_job_id(id);
  log.set_generation(1);
  log.set_data("forged\n");
  for (const auto& [secret, code] : std::vector<std::pair<std::string, absl::StatusCode>>{
           {"the-secret-of-node-b", absl::StatusCode::kNotFound},
           {"", absl::StatusCode::kUnauthenticated}}) {
    EXPECT_THAT(CallAs<v1::ReportRecordsResponse>(secret, &v1::FleetService::Stub::ReportRecords,
                                                  agents_.get(), forged)
                    .status(),
                StatusIs(code));
    EXPECT_THAT(CallAs<v1::ReportLogResponse>(secret, &v1::FleetService::Stub::ReportLog,
                                              agents_.get(), log)
                    .status(),
                StatusIs(code));
  }
  const auto context = MakeContext(kTimeout, "");
  v1::WatchEventsRequest all;
  all.set_job(id);
  const auto reader = people_->WatchEvents(context.get(), all);
  v1::WatchEventsResponse event;
  while (reader->Read(&event)) EXPECT_NE(event.event().reason(), "FORGED");
  EXPECT_OK(
      CallAs<v1::ReportLogResponse>(kSecret, &v1::FleetService::Stub::ReportLog, agents_.get(), log)
          .status());
}

TEST_F(IdentityTest, ARevokedSecretIsRefusedAtOnceAndNoSecretIsOnTheDisk) {
  const auto token = MakeToken(v1::ROLE_AGENT, "", "b");
  ASSERT_OK(token);
  const auto tcp = TcpAgents();
  ASSERT_OK(Join(tcp.get(), "b", kSecret, *token));
  ASSERT_OK(Beat(tcp.get(), "b", kSecret, "1"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text.find(kSecret), std::string::npos) << entry.path();
    EXPECT_EQ(text.find(*token), std::string::npos) << entry.path();
  }
  v1::RevokeTokenRequest revoke;
  revoke.set_token("b");
  EXPECT_OK(Call<v1::RevokeTokenResponse>(&v1::CoordinatorService::Stub::RevokeToken, people_.get(),
                                          revoke)
                .status());
  EXPECT_THAT(Beat(tcp.get(), "b", kSecret, "1").status(),
              StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(IdentityTest, AHeartbeatBeyondTheLimitsIsRefusedAndLongTextsAreCut) {
  v1::HeartbeatRequest request;
  request.mutable_node()->set_name(std::string(254, 'n'));
  const auto beat = [&] {
    return Call<v1::HeartbeatResponse>(&v1::FleetService::Stub::Heartbeat, agents_.get(), request)
        .status();
  };
  EXPECT_THAT(beat(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node.name: 254")));
  request.mutable_node()->set_name("\x1b[31m");
  EXPECT_THAT(beat(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node.name")));
  request.mutable_node()->set_name("a");
  request.mutable_node()->set_driver_version(std::string(257, 'v'));
  EXPECT_THAT(beat(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("257 (at most 256)")));
  request.mutable_node()->set_driver_version("v");
  for (int i = 0; i < 65; ++i) request.mutable_node()->add_gpus();
  EXPECT_THAT(beat(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65 (at most 64)")));
  request.mutable_node()->clear_gpus();
  request.mutable_node()->set_cuda_problem(std::string(3 << 19, 'p'));
  EXPECT_THAT(beat(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(at most 1048576)")));
  request.mutable_node()->set_cuda_problem(std::string(2 << 20, 'p'));
  EXPECT_THAT(beat(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for Heartbeat")));
  request.mutable_node()->set_cuda_problem(std::string(100'000, 'p'));
  request.mutable_node()->add_gpus()->set_fault(std::string(10'000, 'f'));
  ASSERT_OK(beat());
  const auto nodes = Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes,
                                                 people_.get(), v1::ListNodesRequest());
  ASSERT_OK(nodes);
  ASSERT_EQ(nodes->nodes_size(), 1);
  EXPECT_EQ(nodes->nodes(0).info().cuda_problem().size(), 4'096u);
  EXPECT_EQ(nodes->nodes(0).info().gpus(0).fault().size(), 256u);
}

TEST_F(IdentityTest, MachinesAreListedInPages) {
  for (const char* name : {"c", "a", "b"}) ASSERT_OK(Beat(agents_.get(), name, "", "1"));
  v1::ListNodesRequest request;
  request.set_page_size(2);
  std::string names;
  do {
    const auto page = Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes,
                                                  people_.get(), request);
    ASSERT_OK(page);
    for (const v1::Node& node : page->nodes()) names += node.info().name();
    names += '|';
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(names, "ab|c|");
}

class RolesTest : public IdentityTest {
 protected:
  absl::StatusOr<std::string> SubmitAs(const std::string& token, const std::string& name) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec(name);
    const auto made = CallAs<v1::SubmitJobResponse>(token, &v1::CoordinatorService::Stub::SubmitJob,
                                                    TcpPeople().get(), request);
    if (!made.ok()) return made.status();
    return made->job().id();
  }
  absl::StatusOr<v1::Job> StopAs(const std::string& token, const std::string& job) {
    v1::StopJobRequest request;
    request.set_job(job);
    request.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
    const auto made = CallAs<v1::StopJobResponse>(token, &v1::CoordinatorService::Stub::StopJob,
                                                  TcpPeople().get(), request);
    if (!made.ok()) return made.status();
    return made->job();
  }
  absl::Status ProfileAs(const std::string& token, const std::string& job) {
    v1::ProfileJobRequest request;
    request.set_job(job);
    const auto people = TcpPeople();
    const auto context = MakeContext(kTimeout, token);
    const auto reader = people->ProfileJob(context.get(), request);
    v1::ProfileJobResponse response;
    EXPECT_FALSE(reader->Read(&response));
    return FromGrpc(reader->Finish());
  }
  std::set<std::string> SeenBy(const std::string& token) {
    const auto list = CallAs<v1::ListJobsResponse>(token, &v1::CoordinatorService::Stub::ListJobs,
                                                   TcpPeople().get(), v1::ListJobsRequest());
    EXPECT_OK(list);
    std::set<std::string> names;
    for (const v1::Job& job : list->jobs()) names.insert(job.name() + " of " + job.owner());
    return names;
  }
  std::set<std::string> EventsSeenBy(const std::string& token) {
    const auto context = MakeContext(kTimeout, token);
    const auto people = TcpPeople();
    const auto reader = people->WatchEvents(context.get(), v1::WatchEventsRequest());
    std::set<std::string> jobs;
    v1::WatchEventsResponse event;
    while (reader->Read(&event)) jobs.insert(event.event().job_id());
    EXPECT_TRUE(reader->Finish().ok());
    return jobs;
  }
};

// More than a stream looks through in one turn.
TEST_F(RolesTest, ASubmitterReadsPastManyEventsOfOthers) {
  const std::string ada = *MakeToken(v1::ROLE_SUBMITTER, "ada");
  const auto of_bob = SubmitAs(*MakeToken(v1::ROLE_SUBMITTER, "bob"), "two");
  ASSERT_OK(of_bob);
  // Each of 64 problems that is muted, or is so no longer, is an event.
  for (int call = 0; call < 18; ++call) {
    v1::EditJobRequest edit;
    edit.set_job(*of_bob);
    for (int i = 0; i < 64; ++i) {
      (call % 2 == 0 ? edit.add_mute() : edit.add_unmute())->assign(Word(static_cast<Reason>(i)));
    }
    ASSERT_OK(Call<v1::EditJobResponse>(&v1::CoordinatorService::Stub::EditJob, people_.get(), edit)
                  .status());
  }
  const auto of_ada = SubmitAs(ada, "one");
  ASSERT_OK(of_ada);
  EXPECT_THAT(EventsSeenBy(ada), ::testing::ElementsAre(*of_ada));
}

TEST_F(RolesTest, ASubmitterSeesAndTouchesItsOwnJobsOnly) {
  const std::string ada = *MakeToken(v1::ROLE_SUBMITTER, "ada");
  const std::string bob = *MakeToken(v1::ROLE_SUBMITTER, "bob");
  const std::string eve = *MakeToken(v1::ROLE_VIEWER, "eve");
  const std::string olga = *MakeToken(v1::ROLE_OPERATOR, "olga");
  const auto of_ada = SubmitAs(ada, "one");
  const auto of_bob = SubmitAs(bob, "two");
  ASSERT_OK(of_ada);
  ASSERT_OK(of_bob);
  EXPECT_THAT(SeenBy(ada), ::testing::ElementsAre("one of ada"));
  EXPECT_THAT(SeenBy(bob), ::testing::ElementsAre("two of bob"));
  EXPECT_EQ(SeenBy(eve).size(), 2u);
  EXPECT_EQ(SeenBy(olga).size(), 2u);
  EXPECT_THAT(EventsSeenBy(ada), ::testing::ElementsAre(*of_ada));
  EXPECT_EQ(EventsSeenBy(eve).size(), 2u);
  EXPECT_THAT(StopAs(bob, *of_ada).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(StopAs(bob, "one").status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(StopAs(eve, *of_ada).status(), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(SubmitAs(eve, "three").status(), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(ProfileAs(bob, *of_ada), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ProfileAs(eve, *of_ada), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(ProfileAs(ada, *of_ada), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(StopAs(ada, "one").status());
  EXPECT_OK(StopAs(olga, *of_bob).status());
}

TEST_F(RolesTest, ATokenIsRotatedAndRevokedWithoutARestart) {
  const std::string first = *MakeToken(v1::ROLE_VIEWER, "eve");
  EXPECT_THAT(MakeToken(v1::ROLE_VIEWER, "eve").status(),
              StatusIs(absl::StatusCode::kAlreadyExists));
  v1::RotateTokenRequest rotate;
  rotate.set_token("eve");
  const auto rotated = Call<v1::RotateTokenResponse>(&v1::CoordinatorService::Stub::RotateToken,
                                                     people_.get(), rotate);
  ASSERT_OK(rotated);
  const auto version = [&](const std::string& token) {
    return CallAs<v1::GetVersionResponse>(token, &v1::CoordinatorService::Stub::GetVersion,
                                          TcpPeople().get(), v1::GetVersionRequest())
        .status();
  };
  EXPECT_THAT(version(first), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_OK(version(rotated->secret()));
  v1::RevokeTokenRequest revoke;
  revoke.set_token(rotated->token().id());
  ASSERT_OK(Call<v1::RevokeTokenResponse>(&v1::CoordinatorService::Stub::RevokeToken, people_.get(),
                                          revoke)
                .status());
  EXPECT_THAT(version(rotated->secret()), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(RolesTest, OnlyAnOperatorMakesTokensAndBadOnesAreRefused) {
  const std::string ada = *MakeToken(v1::ROLE_SUBMITTER, "ada");
  v1::CreateTokenRequest request;
  request.set_name("mallory");
  request.set_role(v1::ROLE_OPERATOR);
  EXPECT_THAT(CallAs<v1::CreateTokenResponse>(ada, &v1::CoordinatorService::Stub::CreateToken,
                                              TcpPeople().get(), request)
                  .status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("needs the role operator")));
  for (const char* name : {"", "local", "operator", "\x1b[31m", "a b", "-x"}) {
    EXPECT_THAT(MakeToken(v1::ROLE_VIEWER, name).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << name;
  }
  EXPECT_THAT(MakeToken(v1::ROLE_UNSPECIFIED, "x").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeToken(v1::ROLE_AGENT, "", "").status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RolesTest, TheAuditLogSaysWhoChangedWhatFromWhereAndWithWhichResult) {
  const std::string ada = *MakeToken(v1::ROLE_SUBMITTER, "ada");
  ASSERT_OK(SubmitAs(ada, "one").status());
  EXPECT_FALSE(StopAs("a guess", "one").ok());
  EXPECT_OK(StopAs(ada, "one").status());
  Restart();
  const auto audit = Call<v1::ListAuditResponse>(&v1::CoordinatorService::Stub::ListAudit,
                                                 people_.get(), v1::ListAuditRequest());
  ASSERT_OK(audit);
  std::vector<std::string> lines;
  for (const v1::AuditEntry& entry : audit->entries()) {
    EXPECT_EQ(entry.sequence(), static_cast<int64_t>(lines.size()) + 1);
    const bool local = entry.who() == "local";
    EXPECT_THAT(entry.from(), HasSubstr(local ? "unix:" + NameOfUser(geteuid()) : "127.0.0.1"));
    lines.push_back(entry.who() + " " + entry.what() + " " + entry.subject() + " " +
                    entry.result());
  }
  EXPECT_THAT(lines, ::testing::ElementsAre("local CreateToken ada OK", "ada SubmitJob one OK",
                                            " StopJob  UNAUTHENTICATED", "ada StopJob one OK"));
}

TEST_F(RolesTest, OnThePageOnlyAnOperatorChangesJobsAndIsNoted) {
  metrics_address_ = "127.0.0.1:0";
  Restart();
  const std::string ada = *MakeToken(v1::ROLE_SUBMITTER, "ada");
  const std::string olga = *MakeToken(v1::ROLE_OPERATOR, "olga");
  const std::string id = Submit(Spec("demo"));
  const auto stop_with = [&](const std::string& token) {
    const std::string body = R"({"mode": "now"})";
    return HttpRead(
        HttpSend(server_->metrics_address(),
                 absl::StrCat("POST /api/v1/jobs/", id, "/stop HTTP/1.1\r\nHost: localhost\r\n",
                              "Authorization: Bearer ", token, "\r\nContent-Length: ", body.size(),
                              "\r\n\r\n", body)));
  };
  EXPECT_THAT(stop_with("a guess"), HasSubstr(" 401 "));
  EXPECT_THAT(stop_with(ada), HasSubstr(" 403 "));
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  EXPECT_THAT(stop_with(olga), HasSubstr(" 200 "));
  EXPECT_EQ(Get(id).state(), Job::STATE_STOPPED);
  const auto audit = Call<v1::ListAuditResponse>(&v1::CoordinatorService::Stub::ListAudit,
                                                 people_.get(), v1::ListAuditRequest());
  ASSERT_OK(audit);
  std::vector<std::string> lines;
  for (const v1::AuditEntry& entry : audit->entries()) {
    if (entry.from() != "live page") continue;
    EXPECT_EQ(entry.subject(), id);
    lines.push_back(entry.who() + " " + entry.what() + " " + entry.result());
  }
  EXPECT_THAT(lines, ::testing::ElementsAre(" StopJob UNAUTHENTICATED",
                                            " StopJob PERMISSION_DENIED", "olga StopJob OK"));
}

}  // namespace
}  // namespace nsa::server
