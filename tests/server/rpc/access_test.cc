// Access to the coordinator: addresses, tokens, certificates, HTTP, and what is refused.
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/server/rpc/followers.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/http_get.h"
#include "tests/testing/tcp_proxy.h"
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
  const absl::Time start = absl::Now();
  EXPECT_THAT(Server::Start(MakeOptions(), clock_, [] {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("process ", getpid()))));
  Options same_port = MakeOptions();
  same_port.state_dir = folder_ / "another";
  same_port.listen_address = server_->listen_address();
  EXPECT_THAT(Server::Start(same_port, clock_, [] {}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(server_->listen_address())));
  Options same_metrics = MakeOptions();
  same_metrics.state_dir = folder_ / "third";
  same_metrics.metrics_address = server_->listen_address();
  EXPECT_THAT(Server::Start(same_metrics, clock_, [] {}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("metrics_address")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
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
  EXPECT_THAT(
      Server::Start(MakeOptions(), clock_, [] {}).status(),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600 " + file.string())));
}

// Whether an event came since the last call. Reads all of them.
bool WasOpened(int watch) {
  char events[4096];
  bool any = false;
  while (read(watch, events, sizeof(events)) > 0) any = true;
  return any;
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
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(watch, (folder_ / "state/logs" / id).c_str(), IN_OPEN), 0);
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
  EXPECT_FALSE(WasOpened(watch));
  EXPECT_OK(read_log(Token()));
  EXPECT_TRUE(WasOpened(watch));
  close(watch);
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
                  HasSubstr(absl::StrCat("tail_lines: ", lines, " (0 to 100000)")));
    }
  }
}

// The answer must not reveal whether the file exists or what it contains.
TEST_F(ServerTest, AFileOutsideAllowedRootsIsRefusedWithoutBeingOpened) {
  allowed_root_ = folder_ / "root";
  std::filesystem::create_directories(allowed_root_);
  Restart();
  const std::filesystem::path outside = folder_ / "outside";
  std::filesystem::create_directories(outside);
  for (const char* name : {"secret.txt", "vocab.json", "merges.txt"}) {
    std::ofstream(outside / name) << "classified";
  }
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(watch, outside.c_str(), IN_OPEN), 0);
  v1::JobSpec data = TinyJob("demo", allowed_root_ / "out");
  data.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  data.mutable_data()->add_path(outside / "secret.txt");
  v1::JobSpec tokenizer = TinyJob("demo", allowed_root_ / "out");
  tokenizer.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  tokenizer.mutable_data()->set_tokenizer_path(outside);
  for (const v1::JobSpec& spec : {data, tokenizer}) {
    for (const bool validate_only : {true, false}) {
      v1::SubmitJobRequest request;
      *request.mutable_spec() = spec;
      request.set_validate_only(validate_only);
      const absl::Status status =
          Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(),
                                      request)
              .status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("allowed_roots"), HasSubstr("data."))));
    }
  }
  EXPECT_FALSE(WasOpened(watch));
  close(watch);
}

// While the job runs, its out_dir is replaced by a link to a folder outside. The content of that
// folder is not revealed, and the job is not restarted in it.
TEST_F(ServerTest, AnOutDirExchangedForALinkIsNeitherReadNorStartedIn) {
  allowed_root_ = folder_ / "root";
  std::filesystem::create_directories(allowed_root_);
  Restart();
  const std::filesystem::path out_dir = allowed_root_ / "out";
  FakeAgent agent("a", 1, Wire());
  const std::string id = Submit(TinyJob("demo", out_dir));
  const auto beat_until = [&](Job::State state) {
    return Within(absl::Minutes(1), [&] {
      EXPECT_OK(agent.Beat());
      return Get(id).state() == state;
    });
  };
  ASSERT_TRUE(beat_until(Job::STATE_RUNNING));
  std::filesystem::create_directories(folder_ / "secret/checkpoints/step-00000005");
  std::ofstream(folder_ / "secret/checkpoints/step-00000005/state.json") << "classified";
  v1::ListCheckpointsRequest list;
  list.set_job(id);
  v1::VerifyCheckpointRequest verify;
  verify.set_job(id);
  const auto list_them = [&] {
    return Call<v1::ListCheckpointsResponse>(&v1::CoordinatorService::Stub::ListCheckpoints,
                                             people_.get(), list);
  };
  const auto refused = [&](const std::string& what) {
    const auto verified = Call<v1::VerifyCheckpointResponse>(
        &v1::CoordinatorService::Stub::VerifyCheckpoint, people_.get(), verify);
    for (const absl::Status& status : {list_them().status(), verified.status()}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("train.out_dir"), HasSubstr("symbolic link"))))
          << what;
    }
  };
  std::filesystem::create_directories(out_dir);
  std::filesystem::create_directory_symlink(folder_ / "secret/checkpoints",
                                            out_dir / "checkpoints");
  refused("the folder of checkpoints");
  std::filesystem::remove_all(out_dir);
  std::filesystem::create_directories(out_dir / "checkpoints/step-00000005");
  std::filesystem::create_symlink(folder_ / "secret/checkpoints/step-00000005/state.json",
                                  out_dir / "checkpoints/step-00000005/state.json");
  const auto listed = list_them();
  ASSERT_OK(listed);
  ASSERT_EQ(listed->checkpoints_size(), 1);
  EXPECT_THAT(listed->checkpoints(0).error(), HasSubstr("leads through a symbolic link"));
  std::filesystem::remove_all(out_dir);
  std::filesystem::create_directory_symlink(folder_ / "secret", out_dir);
  refused("out_dir");
  agent.Crash(0, SIGSEGV);
  EXPECT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(id).reason() == "PREFLIGHT_REFUSED";
  })) << Get(id).reason();
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING) << "until the folder is put back";
  EXPECT_THAT(Get(id).message(), HasSubstr("symbolic link"));
  EXPECT_EQ(Get(id).generation(), 1);
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
  const std::string& address = server_->listen_address();
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  TcpProxy proxy(static_cast<uint16_t>(port));
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
  const absl::Time vanished = absl::Now();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return streams() == 0; })) << streams();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return proxy.HeldByServer() == 0; }));
  RecordProperty("freed_after_seconds",
                 absl::StrCat(absl::ToDoubleSeconds(absl::Now() - vanished)));
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "everybody else is served";
  for (auto& context : followers.contexts) context->TryCancel();
  followers.job->Finish();
  followers.events->Finish();
  followers.records->Finish();
  followers.logs->Finish();
}

// Calls a method with raw bytes, as a client without the schema does.
std::string RawCall(const std::string& address, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  queue.Next(&tag, &ok);
  call->WritesDone(nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  queue.Next(&tag, &ok);
  if (!ok) return "no answer";
  grpc::Slice joined;
  EXPECT_TRUE(answer.DumpToSingleSlice(&joined).ok());
  return std::string(reinterpret_cast<const char*>(joined.begin()), joined.size());
}

TEST_F(ServerTest, HealthAndReflectionAnswerAnyClient) {
  // HealthCheckResponse{status: SERVING}.
  EXPECT_EQ(RawCall(server_->listen_address(), "/grpc.health.v1.Health/Check", ""),
            std::string("\x08\x01", 2));
  // ServerReflectionRequest{list_services: ""}.
  const std::string services = RawCall(
      server_->listen_address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      std::string("\x3a\x00", 2));
  EXPECT_THAT(services,
              AllOf(HasSubstr("nsa.v1.CoordinatorService"), HasSubstr("nsa.v1.FleetService")));
}

TEST_F(ServerTest, TlsAdmitsOnlyClientsWithACertificateOfOurAuthority) {
  if (std::system("command -v openssl >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "openssl is not installed: no certificates";
  }
  const std::string dir = folder_.path().string();
  const std::string make = absl::StrCat(
      "cd ", dir,
      " && (for a in ca other; do openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$a "
      "-keyout $a.key -out $a.crt; done && for n in server:ca client:ca stranger:other; do "
      "c=${n%:*} a=${n#*:}; openssl req -newkey rsa:2048 -nodes -subj /CN=$c -keyout $c.key -out "
      "$c.csr && printf 'subjectAltName=IP:127.0.0.1' >$c.ext && openssl x509 -req -days 2 -in "
      "$c.csr -CA $a.crt -CAkey $a.key -CAcreateserial -extfile $c.ext -out $c.crt; done) "
      ">/dev/null 2>&1");
  ASSERT_EQ(std::system(make.c_str()), 0);
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

TEST(Options, WithoutAConfigurationOnlyTheSocketTakesCalls) {
  const auto options = ResolveOptions({});
  ASSERT_OK(options);
  EXPECT_EQ(options->listen_address, "");
  EXPECT_EQ(options->metrics_address, "127.0.0.1:9464");
}

TEST(Options, RefuseWhatIsNoAddress) {
  for (const char* bad : {"127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:-1", "foo", "127.0.0.1:",
                          ":50951", "50951", "::1", "::1:50951", "[::1]", "127.0.0.1:50951x",
                          "127.0.0.1: 5", "unix:/x.sock", "http://127.0.0.1:1"}) {
    v1::CoordinatorConfig listen;
    listen.set_listen_address(bad);
    EXPECT_THAT(ResolveOptions(listen).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("listen_address: '", bad, "' (HOST:PORT"))));
    v1::CoordinatorConfig metrics;
    metrics.set_metrics_address(bad);
    EXPECT_THAT(ResolveOptions(metrics).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("metrics_address: '", bad, "' (HOST:PORT"))));
  }
  for (const char* good : {"", "127.0.0.1:0", "127.0.0.1:65535", "localhost:1", "[::1]:50951"}) {
    v1::CoordinatorConfig config;
    config.set_listen_address(good);
    config.set_metrics_address(good);
    EXPECT_OK(ResolveOptions(config).status()) << good;
  }
}

TEST(Options, RefuseAddressesThatOthersCanReach) {
  v1::CoordinatorConfig config;
  config.set_listen_address("0.0.0.0:50951");
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("listen_address"), HasSubstr("token_file"))));
  config.mutable_tls()->set_certificate_file("c");
  config.mutable_tls()->set_private_key_file("k");
  config.mutable_tls()->set_client_ca_file("a");
  EXPECT_THAT(ResolveOptions(config).status(), StatusIs(absl::StatusCode::kFailedPrecondition))
      << "TLS without a token";
  config.set_token_file("t");
  EXPECT_OK(ResolveOptions(config).status());
  config.set_metrics_address("0.0.0.0:9464");
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("metrics_address")));
}

TEST(Options, RefuseHalfATlsBlock) {
  const auto set = [](v1::TlsConfig* tls, int field, const std::string& value) {
    if (field == 0) tls->set_certificate_file(value);
    if (field == 1) tls->set_private_key_file(value);
    if (field == 2) tls->set_client_ca_file(value);
  };
  const char* names[] = {"tls.certificate_file", "tls.private_key_file", "tls.client_ca_file"};
  for (int some = 1; some < 7; ++some) {  // one bit for each file; 0 would be none and 7 all
    v1::CoordinatorConfig config;
    std::string missing;
    for (int field = 2; field >= 0; --field) {
      if ((some & 1 << field) != 0) {
        set(config.mutable_tls(), field, "pem");
      } else {
        missing = names[field];
      }
    }
    EXPECT_THAT(ResolveOptions(config).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(missing)))
        << config.tls().ShortDebugString();
  }
}

TEST(Options, KeepJobsForEverUnlessToldForHowLong) {
  v1::CoordinatorConfig config;
  EXPECT_EQ(ResolveOptions(config)->job_retention, absl::ZeroDuration());
  config.set_job_retention_days(0.5);
  EXPECT_EQ(ResolveOptions(config)->job_retention, absl::Hours(12));
  for (const double days : {-1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    config.set_job_retention_days(days);
    EXPECT_THAT(ResolveOptions(config).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job_retention_days")));
  }
}

TEST(Options, RefuseTimesThatWouldKillHealthyJobs) {
  v1::CoordinatorConfig config;
  config.set_node_unknown_seconds(20);
  config.set_node_lost_seconds(15);
  EXPECT_THAT(ResolveOptions(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node_lost_seconds: 15")));
}

}  // namespace
}  // namespace nsa::server
