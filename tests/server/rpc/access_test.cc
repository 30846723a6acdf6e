// Access to the coordinator: addresses, tokens, certificates, HTTP, and what is refused.
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "server/rpc/permission.h"
#include "tests/server/rpc/followers.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/net/tcp_proxy.h"
#include "tests/testing/open_watch.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ServerTest, ATooLargeMessageIsRefusedAndTheServerGoesOn) {
  v1::JobSpec spec = Spec("huge");
  (*spec.mutable_labels())["x"] = std::string(5 << 20, 'x');
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  grpc::ChannelArguments own;
  own.SetMaxSendMessageSize(-1);
  const auto stub = v1::CoordinatorService::NewStub(grpc::CreateCustomChannel(
      server_->listen_address(), grpc::InsecureChannelCredentials(), own));
  EXPECT_THAT(
      Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, stub.get(), request)
          .status(),
      StatusIs(absl::StatusCode::kResourceExhausted));
  spec.mutable_labels()->clear();
  EXPECT_TRUE(TrySubmit(spec).ok());
}

TEST_F(ServerTest, MetricsAndHealthAnswerOverHttp) {
  metrics_address_ = "127.0.0.1:0";
  Restart();
  const std::string text = HttpGet(server_->metrics_address(), "/metrics");
  EXPECT_THAT(text, AllOf(HasSubstr("200 OK"), HasSubstr("nsa_build_info{")));
  EXPECT_THAT(HttpGet(server_->metrics_address(), "/healthz"), HasSubstr("ok\n"));
  EXPECT_THAT(HttpGet(server_->metrics_address(), "/nothing"), HasSubstr("404"));
}

TEST_F(ServerTest, AMachineThatNeverComesBackLeavesTheListAndTheMetrics) {
  metrics_address_ = "127.0.0.1:0";
  forgets_at_once_ = true;
  Restart();
  FakeAgent agent("renamed", 1, Wire());
  const auto listed = [&] {
    const auto nodes = Call<v1::ListNodesResponse>(&v1::CoordinatorService::Stub::ListNodes,
                                                   people_.get(), v1::ListNodesRequest());
    EXPECT_OK(nodes.status());
    return nodes.ok() && nodes->nodes_size() > 0;
  };
  const auto measured = [&] {
    return absl::StrContains(HttpGet(server_->metrics_address(), "/metrics"),
                             "nsa_agent_up{agent=\"renamed\"}");
  };
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return listed() && measured();
  }));
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return !listed() && !measured(); }));
}

TEST_F(ServerTest, ASecondCoordinatorIsRefusedWithinTwoSeconds) {
  const auto refusal = [this](const Options& options) {
    const absl::Duration start = RealClock().Monotonic();
    const absl::Status status = StartWith(options).status();
    EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(2)) << status;
    return status;
  };
  EXPECT_THAT(refusal(MakeOptions()), StatusIs(absl::StatusCode::kFailedPrecondition,
                                               HasSubstr(absl::StrCat("process ", getpid()))));
  Options same_port = MakeOptions();
  same_port.state_dir = folder_ / "another";
  same_port.listen_address = server_->listen_address();
  EXPECT_THAT(refusal(same_port),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server_->listen_address())));
  Options same_metrics = MakeOptions();
  same_metrics.state_dir = folder_ / "third";
  same_metrics.metrics_address = server_->listen_address();
  EXPECT_THAT(refusal(same_metrics),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("metrics_address")));
}

TEST_F(ServerTest, TcpNeedsTheTokenAndTheSocketDoesNot) {
  token_file_ = (folder_ / "token").string();
  std::ofstream(token_file_) << "0123456789abcdef0123\n";
  chmod(token_file_.c_str(), 0600);
  Restart();
  const auto tcp = v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
  for (const auto& [token, code] : std::vector<std::pair<std::string, grpc::StatusCode>>{
           {"", grpc::UNAUTHENTICATED},
           {"wrong", grpc::UNAUTHENTICATED},
           {"0123456789abcdef012", grpc::UNAUTHENTICATED},
           {"0123456789abcdef01234", grpc::UNAUTHENTICATED},
           {"0123456789abcdef0123", grpc::OK}}) {
    const auto context = MakeContext(kTimeout, token);
    v1::GetVersionResponse version;
    EXPECT_EQ(tcp->GetVersion(context.get(), {}, &version).error_code(), code) << token;
    const auto streaming = MakeContext(kTimeout, token);
    v1::WatchEventsResponse event;
    const auto reader = tcp->WatchEvents(streaming.get(), {});
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_EQ(reader->Finish().error_code(), code) << token;
  }
  EXPECT_TRUE(TrySubmit(Spec("demo")).ok()) << "the socket";
}

TEST_F(ServerTest, TcpOnLoopbackNeedsTheTokenThatTheFirstStartMade) {
  const std::filesystem::path file = folder_ / "state/token";
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const std::string token = Token();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
  const auto submit = [&](const std::string& with) {
    const auto tcp = v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
    const auto context = MakeContext(kTimeout, with);
    v1::SubmitJobRequest request;
    v1::SubmitJobResponse response;
    *request.mutable_spec() = Spec("demo");
    request.set_validate_only(true);
    return FromGrpc(tcp->SubmitJob(context.get(), request, &response));
  };
  EXPECT_THAT(submit(""), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("token_file")));
  EXPECT_OK(submit(token));
  Restart();
  EXPECT_EQ(Token(), token);
  EXPECT_OK(submit(token));
}

TEST_F(ServerTest, ATokenFileThatOthersCanReadStopsTheStart) {
  const std::filesystem::path file = folder_ / "state/token";
  server_.reset();
  chmod(file.c_str(), 0640);
  EXPECT_THAT(StartWith(MakeOptions()).status(), StatusIs(absl::StatusCode::kPermissionDenied,
                                                          HasSubstr("chmod 600 " + file.string())));
}

TEST_F(ServerTest, NothingIsReadForAStreamWithoutTheToken) {
  KeepBeating(1, 0);
  const std::string id = Submit(Spec("demo"));
  ASSERT_TRUE(Within(absl::Minutes(1), [&] { return Get(id).state() == Job::STATE_RUNNING; }));
  v1::ReportLogRequest log;
  log.set_job_id(id);
  log.set_generation(1);
  log.set_data("a line\n");
  ASSERT_OK(
      Call<v1::ReportLogResponse>(&v1::FleetService::Stub::ReportLog, agents_.get(), log).status());
  OpenWatch watch(folder_ / "state/logs" / id);
  const auto tcp = v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
  const auto read_log = [&](const std::string& token) {
    const auto context = MakeContext(kTimeout, token);
    v1::StreamLogsRequest request;
    request.set_job(id);
    request.set_tail_lines(1);
    const auto reader = tcp->StreamLogs(context.get(), request);
    v1::StreamLogsResponse response;
    while (reader->Read(&response)) {
    }
    return FromGrpc(reader->Finish());
  };
  EXPECT_THAT(read_log(""), StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_FALSE(watch.WasOpened());
  EXPECT_OK(read_log(Token()));
  EXPECT_TRUE(watch.WasOpened());
}

TEST_F(ServerTest, ATailOfTooManyLinesIsRefusedWithTheLimit) {
  const std::string id = Submit(Spec("demo"));
  for (const auto& [lines, code] :
       std::vector<std::pair<int, absl::StatusCode>>{{100'001, absl::StatusCode::kInvalidArgument},
                                                     {-1, absl::StatusCode::kInvalidArgument},
                                                     {100'000, absl::StatusCode::kOk}}) {
    const auto context = MakeContext(kTimeout, "");
    v1::StreamLogsRequest request;
    request.set_job(id);
    request.set_tail_lines(lines);
    const auto reader = people_->StreamLogs(context.get(), request);
    v1::StreamLogsResponse response;
    EXPECT_FALSE(reader->Read(&response));
    const absl::Status status = FromGrpc(reader->Finish());
    EXPECT_EQ(status.code(), code) << status;
    if (!status.ok()) {
      EXPECT_THAT(status.ToString(),
                  HasSubstr(absl::StrCat("tail_lines: ", lines, " (from 0 to 100000)")));
    }
  }
}

// The number of open streams according to the coordinator's metrics; -1 when it does not answer.
int OpenStreams(const std::string& metrics_address) {
  const std::string text = HttpGet(metrics_address, "/metrics");
  if (!absl::StrContains(text, "200 OK")) return -1;
  double streams = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, "nsa_rpc_streams_active{") &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      streams += value;
    }
  }
  return static_cast<int>(streams);
}

// A host that loses power sends no FIN. Here a proxy that stops forwarding stands for it. The
// host's streams, one of each kind, must end, and its connection must be closed.
TEST_F(ServerTest, TheStreamsOfAHostThatVanishedEnd) {
  metrics_address_ = "127.0.0.1:0";
  ping_every_ = absl::Milliseconds(500);
  ping_timeout_ = absl::Seconds(3);
  Restart();
  KeepBeating(1, 0);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_train()->set_steps(1'000'000);
  WaiveLength(&spec);
  const std::string id = Submit(spec);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] { return Get(id).state() == Job::STATE_RUNNING; }));
  StopBeating();  // the streams have nothing more to send
  TcpProxy proxy(server_->listen_address());
  // Configured like nsactl, which also sends pings, but with a separate connection.
  const auto stub = v1::CoordinatorService::NewStub(*OpenChannel(proxy.address(), {}));
  Followers followers(stub.get(), id, absl::InfiniteDuration(), Token());
  v1::WatchJobResponse job_read;
  ASSERT_TRUE(followers.job->Read(&job_read));
  const auto streams = [&] { return OpenStreams(server_->metrics_address()); };
  ASSERT_TRUE(Within(absl::Minutes(1), [&] { return streams() == 4; }));
  ASSERT_EQ(proxy.HeldByServer(), 1);

  // An idle reader that answers pings is kept, even for many times both durations.
  absl::SleepFor(absl::Seconds(8));
  EXPECT_EQ(streams(), 4);
  EXPECT_EQ(proxy.HeldByServer(), 1);

  proxy.Freeze();
  const absl::Duration vanished = RealClock().Monotonic();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return streams() == 0; })) << streams();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return proxy.HeldByServer() == 0; }));
  RecordProperty("freed_after_seconds",
                 absl::StrCat(absl::ToDoubleSeconds(RealClock().Monotonic() - vanished)));
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "everybody else is served";
  for (auto& context : followers.contexts) context->TryCancel();
  followers.job->Finish();
  followers.events->Finish();
  followers.records->Finish();
  followers.logs->Finish();
}

TEST_F(ServerTest, AConnectionMayTakeASecond) {
  TcpProxy line(server_->listen_address());
  line.Freeze();
  std::thread delay([&] {
    absl::SleepFor(absl::Seconds(1));
    line.Thaw();
  });
  const auto stub = v1::CoordinatorService::NewStub(*OpenChannel(line.address(), {}));
  const auto context = MakeContext(kTimeout, Token());
  v1::GetVersionResponse response;
  const grpc::Status status = stub->GetVersion(context.get(), {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  delay.join();
}

// Unpacked, the requests would take 130 MB each.
TEST_F(ServerTest, EveryMethodKnowsItsCallerAndItsLimitBeforeItUnpacks) {
  std::string unknown;
  while (unknown.size() < 4'000'000) unknown += "\x78\x01";  // field 15: 1
  const auto channel = OpenChannel(server_->listen_address(), {});
  int methods = 0;
  for (const std::string name : {"nsa.v1.CoordinatorService", "nsa.v1.FleetService"}) {
    const auto* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const std::string& method = service->method(i)->name();
      EXPECT_GT(RequestLimit(method), 0u) << method;
      const std::string path = absl::StrCat("/", name, "/", method);
      EXPECT_EQ(CallRaw(*channel, path, unknown, "").status.error_code(),
                method == "Join" ? grpc::RESOURCE_EXHAUSTED : grpc::UNAUTHENTICATED)
          << method;
      EXPECT_EQ(CallRaw(*channel, path, unknown, Token()).status.error_code(),
                grpc::RESOURCE_EXHAUSTED)
          << method;
      EXPECT_EQ(CallRaw(*channel, path, "\x78", "").status.error_code(),
                method == "Join" ? grpc::UNIMPLEMENTED : grpc::UNAUTHENTICATED)
          << method << " unpacks for a stranger";
    }
  }
  EXPECT_EQ(methods, 34);
}

TEST_F(ServerTest, HealthAnswersAnyClientAndReflectionNobody) {
  const auto channel = OpenChannel(server_->listen_address(), {});
  // HealthCheckResponse{status: SERVING}.
  EXPECT_EQ(CallRaw(*channel, "/grpc.health.v1.Health/Check", "", "").bytes,
            std::string("\x08\x01", 2));
  // gRPC's reflection unpacks what strangers send.
  EXPECT_EQ(CallRaw(*channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                    std::string("\x3a\x00", 2), Token())
                .status.error_code(),
            grpc::UNIMPLEMENTED);
}

// Inflating it would take 64 MiB for a caller who is not even known.
TEST_F(ServerTest, ACompressedMessageIsRefusedBeforeItIsInflated) {
  const auto stub = v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}));
  v1::GetJobRequest request;
  request.set_job(std::string(3 << 20, 'x'));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const auto context = MakeContext(kTimeout, Token());
    context->set_compression_algorithm(algorithm);
    v1::GetJobResponse response;
    EXPECT_EQ(stub->GetJob(context.get(), request, &response).error_code(), grpc::UNIMPLEMENTED);
  }
  const auto context = MakeContext(kTimeout, Token());
  request.set_job("nothing");
  v1::GetJobResponse response;
  EXPECT_EQ(stub->GetJob(context.get(), request, &response).error_code(), grpc::NOT_FOUND);
}

TEST_F(ServerTest, TlsAdmitsOnlyClientsWithACertificateOfOurAuthority) {
  const std::string dir = folder_.path().string();
  ASSERT_TRUE(MakeCertificates(dir));
  const auto material = [&](const std::string& name) {
    v1::TlsConfig tls;
    tls.set_certificate_file(absl::StrCat(dir, "/", name, ".crt"));
    tls.set_private_key_file(absl::StrCat(dir, "/", name, ".key"));
    tls.set_client_ca_file(absl::StrCat(dir, "/ca.crt"));
    return tls;
  };
  tls_ = material("server");
  Restart();
  const auto version = [&](const v1::TlsConfig& tls) {
    const auto stub = v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), tls));
    const auto context = MakeContext(absl::Seconds(5), Token());
    v1::GetVersionResponse response;
    return stub->GetVersion(context.get(), {}, &response).error_code();
  };
  EXPECT_EQ(version(material("client")), grpc::OK);
  EXPECT_EQ(version(material("stranger")), grpc::UNAVAILABLE);
  v1::TlsConfig nobody;
  nobody.set_client_ca_file(absl::StrCat(dir, "/ca.crt"));
  EXPECT_EQ(version(nobody), grpc::UNAVAILABLE);
  EXPECT_EQ(version({}), grpc::UNAVAILABLE) << "plaintext";
}

}  // namespace
}  // namespace nsa::server
