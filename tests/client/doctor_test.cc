// nsactl doctor: every check with input that makes it fail.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/admin/machine_checks.h"
#include "common/base/fd.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/temp_dir.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Level = Check::Level;

constexpr int64_t kGiB = int64_t{1} << 30;

v1::Node GpuNode() {
  v1::Node node;
  node.set_state("READY");
  node.mutable_info()->set_name("gpu-01");
  node.mutable_info()->set_driver_version("580.95");
  node.mutable_info()->set_cuda_worker(true);
  v1::GpuInfo& gpu = *node.mutable_info()->add_gpus();
  gpu.set_uuid("GPU-1");
  gpu.set_name("H100");
  gpu.set_memory_bytes(80 * kGiB);
  gpu.set_free_bytes(79 * kGiB);
  return node;
}

// The worst check of a node, and its text.
std::pair<Level, std::string> WorstOf(const v1::Node& node) {
  std::pair<Level, std::string> worst = {Level::kOk, ""};
  for (const Check& check : CheckNode(node, absl::Now())) {
    if (check.level > worst.first) {
      worst = {check.level, absl::StrCat(check.what, ": ", check.value, "; ", check.fix)};
    }
  }
  return worst;
}

TEST(Doctor, SaysWhatIsWrongWithANode) {
  EXPECT_EQ(WorstOf(GpuNode()).first, Level::kOk);
  v1::Node node = GpuNode();
  node.set_state("LOST");
  EXPECT_EQ(WorstOf(node).first, Level::kFailed);

  node = GpuNode();
  node.mutable_info()->set_cuda_worker(false);
  node.mutable_info()->set_cuda_problem("cuBLASLt: libcublasLt.so.13 not found");
  auto [level, text] = WorstOf(node);
  EXPECT_EQ(level, Level::kFailed);
  EXPECT_THAT(text, AllOf(HasSubstr("driver 580.95"), HasSubstr("libcublasLt.so.13"),
                          HasSubstr("--check-gpu")));

  node = GpuNode();
  node.mutable_info()->set_cuda_problem("NCCL: libnccl.so.2 not found");
  std::tie(level, text) = WorstOf(node);
  EXPECT_EQ(level, Level::kWarning);
  EXPECT_THAT(text, AllOf(HasSubstr("libnccl.so.2"), HasSubstr("--check-nccl")));

  node = GpuNode();
  node.set_heartbeat_unix_nanos(absl::ToUnixNanos(absl::Now()));
  node.mutable_info()->set_unix_nanos(node.heartbeat_unix_nanos() + 900'000'000);
  EXPECT_EQ(WorstOf(node).first, Level::kOk);
  node.mutable_info()->set_unix_nanos(node.heartbeat_unix_nanos() - 1'500'000'000);
  std::tie(level, text) = WorstOf(node);
  EXPECT_EQ(level, Level::kWarning);
  EXPECT_THAT(text, AllOf(HasSubstr("clock: -1.500 s"), HasSubstr("synchronize")));

  node = GpuNode();
  node.mutable_info()->mutable_gpus(0)->set_fault("2 uncorrectable memory errors");
  std::tie(level, text) = WorstOf(node);
  EXPECT_EQ(level, Level::kFailed);
  EXPECT_THAT(text, AllOf(HasSubstr("GPU-1"), HasSubstr("2 uncorrectable memory errors")));

  node = GpuNode();
  node.mutable_info()->set_gpus_age_seconds(-1);
  EXPECT_EQ(WorstOf(node).first, Level::kWarning);
  node = GpuNode();
  node.mutable_info()->clear_gpus();
  node.mutable_info()->clear_driver_version();
  node.mutable_info()->set_cuda_worker(false);
  EXPECT_EQ(WorstOf(node).first, Level::kOk) << "a machine without a GPU has no need of a driver";
}

TEST(Doctor, NamesForwardCompatibility) {
  v1::Node node = GpuNode();
  node.mutable_info()->set_cuda_compat_path("/usr/local/cuda-13.0/compat");
  EXPECT_THAT(CheckNode(node, absl::Now())[1].value, HasSubstr("/usr/local/cuda-13.0/compat"));
}

TEST(Doctor, JudgesLimits) {
  EXPECT_EQ(CheckDescriptors({1024, 1024}).level, Level::kWarning);
  EXPECT_EQ(CheckDescriptors({1024, 1 << 20}).level, Level::kOk);
  EXPECT_EQ(CheckDescriptors({1024, RLIM_INFINITY}).level, Level::kOk);
  EXPECT_EQ(CheckLockedMemory({8 << 20, 8 << 20}).level, Level::kWarning);
  EXPECT_EQ(CheckLockedMemory({RLIM_INFINITY, RLIM_INFINITY}).level, Level::kOk);
  EXPECT_EQ(CheckCoreDumps({RLIM_INFINITY, RLIM_INFINITY}, "core").level, Level::kWarning);
  EXPECT_EQ(CheckCoreDumps({RLIM_INFINITY, RLIM_INFINITY}, "|/usr/bin/dump %p").level, Level::kOk);
  EXPECT_EQ(CheckCoreDumps({0, RLIM_INFINITY}, "core").level, Level::kOk);
}

TEST(Doctor, JudgesTheClock) {
  const absl::Time now = absl::FromCivil(absl::CivilDay(2026, 11, 22), absl::UTCTimeZone());
  timex good{};
  EXPECT_EQ(CheckClock(now, good, TIME_OK).level, Level::kOk);
  EXPECT_EQ(CheckClock(now, good, TIME_ERROR).level, Level::kWarning);
  timex loose{};
  loose.maxerror = 16'000'000;
  EXPECT_EQ(CheckClock(now, loose, TIME_OK).level, Level::kWarning);
  timex apart{};
  apart.status = STA_UNSYNC;
  EXPECT_EQ(CheckClock(now, apart, TIME_OK).level, Level::kWarning);
  EXPECT_EQ(CheckClock(absl::UnixEpoch(), good, TIME_OK).level, Level::kFailed);
}

TEST(Doctor, JudgesFolders) {
  EXPECT_EQ(CheckFreeSpace("/a", kGiB - 1).level, Level::kFailed);
  EXPECT_EQ(CheckFreeSpace("/a", 2 * kGiB).level, Level::kWarning);
  EXPECT_EQ(CheckFreeSpace("/a", 100 * kGiB).level, Level::kOk);
  EXPECT_EQ(CheckFileSystem("/a", "").level, Level::kOk);
  EXPECT_EQ(CheckFileSystem("/a", "NFS").level, Level::kWarning);
  EXPECT_EQ(CheckWriteSpeed("/a", 5e6).level, Level::kWarning);
  EXPECT_EQ(CheckWriteSpeed("/a", 500e6).level, Level::kOk);
  const TempDir folder;
  const auto measured = MeasureFolder(folder / "not/there/yet");
  ASSERT_EQ(measured.size(), 3U);
  EXPECT_THAT(measured[1].value, HasSubstr("MB/s"));
  EXPECT_EQ(measured[2].level, Level::kOk) << measured[2].value;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  // Nobody can make a file here, root neither.
  const auto refused = MeasureFolder("/proc/self");
  EXPECT_EQ(refused.back().level, Level::kFailed);
  const Check forbidden = CheckOpening("/a", absl::UnimplementedError("/a/x: not there; mend it"));
  EXPECT_EQ(forbidden.level, Level::kFailed);
  EXPECT_EQ(forbidden.value, "/a/x: not there");
  EXPECT_EQ(forbidden.fix, "mend it");
}

// A server that answers every connection with this text.
class Answering {
 public:
  explicit Answering(std::string answer) : answer_(std::move(answer)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_.get(), 4), 0);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      while (true) {
        const Fd caller(accept(socket_.get(), nullptr, nullptr));
        if (!caller.valid()) return;
        char bytes[1024];
        EXPECT_GT(recv(caller.get(), bytes, sizeof(bytes), 0), 0);
        send(caller.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
      }
    });
  }
  ~Answering() {
    shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  const std::string answer_;
  const Fd socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port_ = 0;
  std::thread thread_;
};

TEST(Doctor, KnowsItsOwnPortsFromOthers) {
  std::string free;
  {
    const Answering other("SSH-2.0-OpenSSH_9.2\r\n");
    free = other.address();
    EXPECT_EQ(*AskPort(other.address(), true), PortUser::kAnother);
    EXPECT_EQ(*AskPort(other.address(), false), PortUser::kAnother);
  }
  EXPECT_EQ(*AskPort(free, true), PortUser::kNobody);
  const Answering page("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n");
  EXPECT_EQ(*AskPort(page.address(), false), PortUser::kOurs);
  EXPECT_EQ(*AskPort(page.address(), true), PortUser::kAnother);
  FakeCoordinatorService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  EXPECT_EQ(*AskPort(absl::StrCat("127.0.0.1:", port), true), PortUser::kOurs);
  EXPECT_FALSE(AskPort("nonsense", true).ok());
  EXPECT_EQ(CheckPort("listen_address", free, PortUser::kAnother).level, Level::kFailed);
}

// A coordinator that other machines reach speaks TLS and wants a client's certificate.
TEST(Doctor, KnowsItsOwnPortsOverTls) {
  const TempDir folder;
  ASSERT_TRUE(MakeCertificates(folder.path()));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = *ReadWholeFile(folder / "ca.crt");
  options.pem_key_cert_pairs.push_back(
      {*ReadWholeFile(folder / "server.key"), *ReadWholeFile(folder / "server.crt")});
  FakeCoordinatorService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  for (const bool grpc : {true, false}) {
    EXPECT_EQ(*AskPort(address, grpc, (folder / "server.crt").string()), PortUser::kOurs);
    EXPECT_EQ(*AskPort(address, grpc, (folder / "client.crt").string()), PortUser::kAnother);
    EXPECT_EQ(*AskPort(address, grpc), PortUser::kAnother);
  }
  const Answering other("SSH-2.0-OpenSSH_9.2\r\n");
  EXPECT_EQ(*AskPort(other.address(), true, (folder / "server.crt").string()), PortUser::kAnother);
}

class DoctorCommandTest : public NsactlTest {};

TEST_F(DoctorCommandTest, PrintsALineForEachCheckAndFailsWhenOneFailed) {
  state().nodes = {GpuNode()};
  const std::string config = (dir_ / "coordinator.yaml").string();
  std::ofstream(config) << "metrics_address: ''\nstate_dir: " << dir_.path().string() << "\n";
  const Ran good = Run({"doctor", "--config", config});
  EXPECT_EQ(good.code, ExitCode::kOk) << good.out << good.err;
  EXPECT_THAT(good.out, AllOf(HasSubstr("RESULT"), HasSubstr("node gpu-01 GPU-1"),
                              HasSubstr("open files"), HasSubstr("clock"), HasSubstr("speed of ")));

  state().nodes[0].mutable_info()->mutable_gpus(0)->set_fault("XID 79");
  const Ran broken = Run({"doctor", "--config", config, "-o", "json"});
  EXPECT_EQ(broken.code, ExitCode::kFailed);
  const auto document = nlohmann::json::parse(broken.out);
  EXPECT_EQ(document["failed"], 1);
  EXPECT_THAT(Run({"doctor", "--config", config, "-o", "name"}).out,
              HasSubstr("node gpu-01 GPU-1\n"));

  state().nodes.clear();
  EXPECT_THAT(Run({"doctor", "--config", config}).out, HasSubstr("start nsa-agent"));
}

TEST_F(DoctorCommandTest, SaysWhenCertificatesEnd) {
  state().nodes = {GpuNode()};
  const std::string tls = (dir_ / "tls").string();
  const std::string config = (dir_ / "coordinator.yaml").string();
  std::ofstream(config) << "metrics_address: ''\nstate_dir: " << dir_.path().string()
                        << "\ntls: {certificate_file: " << tls << "/coordinator.crt"
                        << ", private_key_file: " << tls << "/coordinator.key"
                        << ", client_ca_file: " << tls << "/ca.crt}\n";
  const auto checks = [&] {
    std::map<std::string, nlohmann::json> found;
    const auto document =
        nlohmann::json::parse(Run({"doctor", "--config", config, "-o", "json"}).out);
    for (const auto& check : document["checks"]) found[check["check"]] = check;
    return found;
  };
  EXPECT_EQ(checks()["certificates"]["level"], "warning") << "perhaps only not for this user";
  ASSERT_EQ(RunAlone({"admin", "init-tls", tls, "--days", "31"}).code, ExitCode::kOk);
  const std::string coordinator = "certificate " + tls + "/coordinator.crt";
  auto found = checks();
  EXPECT_EQ(found[coordinator]["level"], "ok");
  EXPECT_THAT(std::string(found[coordinator]["value"]), HasSubstr(", in 31 days"));
  EXPECT_EQ(found["certificate " + tls + "/ca.crt"]["level"], "ok");
  ASSERT_EQ(RunAlone({"admin", "renew-tls", tls, "--days", "29"}).code, ExitCode::kOk);
  found = checks();
  EXPECT_EQ(found[coordinator]["level"], "warning");
  EXPECT_THAT(std::string(found[coordinator]["fix"]), HasSubstr("nsactl admin renew-tls"));
  std::filesystem::copy_file(tls + "/ca.key", tls + "/coordinator.key",
                             std::filesystem::copy_options::overwrite_existing);
  found = checks();
  EXPECT_EQ(found["certificates"]["level"], "failed");
  EXPECT_THAT(std::string(found["certificates"]["value"]), HasSubstr("is not the key of"));
}

TEST_F(DoctorCommandTest, ACoordinatorThatDoesNotAnswerIsACheckThatFailed) {
  const Answering other("SSH-2.0\r\n");
  const std::string config = (dir_ / "coordinator.yaml").string();
  std::ofstream(config) << "metrics_address: " << other.address() << "\nstate_dir: /proc/self\n";
  const Ran ran = RunAlone({"--address", "unix:" + (dir_ / "nobody.sock").string(), "--timeout",
                            "1", "doctor", "--config", config, "-o", "json"});
  EXPECT_EQ(ran.code, ExitCode::kFailed);
  std::vector<std::string> failed;
  const auto document = nlohmann::json::parse(ran.out);
  for (const auto& check : document["checks"]) {
    if (check["level"] != "failed") continue;
    failed.push_back(check["check"]);
    EXPECT_NE(check["fix"], "");
  }
  EXPECT_THAT(failed,
              AllOf(::testing::Contains("coordinator"), ::testing::Contains("metrics_address"),
                    ::testing::Contains("speed of /proc/self")));
  EXPECT_EQ(RunAlone({"doctor", "--config", "/nowhere.yaml"}).code, ExitCode::kNotFound);
}

}  // namespace
}  // namespace nsa::client
