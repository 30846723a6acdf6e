// nsa-coordinator at SIGHUP and with --check-config: what is wrong with a configuration, or with a
// file or an address that it names, is said, and nothing changes.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "common/base/fd.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "tests/server/program_fixture.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/within.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

// A port of loopback that a socket is bound to.
struct BoundPort {
  BoundPort() : bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{.sin_family = AF_INET};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(bind(bound.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    getsockname(bound.get(), reinterpret_cast<sockaddr*>(&at), &length);
    port = absl::StrCat(":", ntohs(at.sin_port));
  }
  Fd bound;
  std::string port;  // ":1234"
};

// Somebody else listens on it.
struct TakenPort : BoundPort {
  TakenPort() { EXPECT_EQ(listen(bound.get(), 1), 0); }
  std::string address = "127.0.0.1" + port;
};

// Nobody else is given it, and a coordinator that asks for it can listen on it: HeldPorts in
// tests/testing/ports.py says why.
struct HeldPort : BoundPort {
  HeldPort() {
    constexpr int kOn = 1;
    for (const int option : {SO_REUSEADDR, SO_REUSEPORT}) {
      EXPECT_EQ(setsockopt(bound.get(), SOL_SOCKET, option, &kOn, sizeof kOn), 0);
    }
  }
};

class ReloadTest : public ProgramTest {
 protected:
  ReloadTest() {
    EXPECT_TRUE(MakeCertificates(folder_.path()));
    Write("token", "0123456789abcdef\n");
    metrics_ = "127.0.0.1:0";
    config_ = Config("127.0.0.1:0");
  }

  std::string Path(const std::string& name) { return (folder_ / name).string(); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(Path(name)) << content;
    chmod(Path(name).c_str(), 0600);
  }
  std::string Config(const std::string& listen) {
    return absl::StrCat(
        "local_agent: false\nlisten_address: ", listen, "\ntoken_file: ", Path("token"),
        "\ntls: {certificate_file: ", Path("server.crt"),
        ", private_key_file: ", Path("server.key"), ", client_ca_file: ", Path("ca.crt"), "}\n");
  }
  // Over TCP, as the client with this certificate.
  bool AnswersOverTcp(const std::string& certificate = "client") {
    v1::TlsConfig tls;
    tls.set_certificate_file(Path(certificate + ".crt"));
    tls.set_private_key_file(Path(certificate + ".key"));
    tls.set_client_ca_file(Path("authority"));
    if (!Answers("state") || !Within(absl::Minutes(1), [&] { return !TcpAddress().empty(); })) {
      return false;
    }
    const auto channel = OpenChannel(TcpAddress(), tls);
    EXPECT_OK(channel.status());
    const auto stub = v1::CoordinatorService::NewStub(*channel);
    const auto context = MakeContext(absl::Seconds(10), "0123456789abcdef");
    v1::GetVersionResponse response;
    return stub->GetVersion(context.get(), {}, &response).ok();
  }
  size_t Count(const std::string& text) {
    const std::string output = Output();
    size_t count = 0;
    for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) {
      ++count;
    }
    return count;
  }
  int CheckConfig() { return WaitForExit(Start("state", {"--check-config"})); }
};

constexpr char kRefused[] = "the configuration is refused and nothing changes: ";
constexpr char kAnew[] = "starting anew with the configuration";

struct Mistake {
  const char* name;
  std::function<void()> make;
  std::string said;
  int code;  // of a start, and of --check-config
};

TEST_F(ReloadTest, EveryMistakeIsNamedAndChangesNothing) {
  fs::copy_file(Path("ca.crt"), Path("authority"));
  const pid_t pid = Start("state");
  ASSERT_TRUE(AnswersOverTcp()) << Output();
  const std::string good = config_;
  const TakenPort taken;
  const std::vector<Mistake> mistakes = {
      {"an unknown key", [&] { config_ = good + "colour: red\n"; },
       Path("coordinator.yaml") + ":5:1: colour: unknown key", 2},
      {"no certificate", [&] { fs::remove(Path("server.crt")); },
       "tls.certificate_file: " + Path("server.crt") + " cannot be read (No such file", 2},
      {"half a renewal",
       [&] {
         fs::copy_file(Path("client.crt"), Path("server.crt"),
                       fs::copy_options::overwrite_existing);
       },
       "tls.private_key_file: " + Path("server.key") + " is not the key of", 2},
      {"a certificate that has ended",
       [&] {
         for (const std::string end : {".crt", ".key"}) {
           fs::copy_file(Path("ended" + end), Path("server" + end),
                         fs::copy_options::overwrite_existing);
         }
       },
       "tls.certificate_file: " + Path("server.crt") + " ended on ", 2},
      {"garbage in the certificate", [&] { Write("server.crt", "garbage"); },
       "tls.certificate_file: " + Path("server.crt") + " is not a certificate", 2},
      {"garbage in the authority", [&] { Write("ca.crt", "garbage"); },
       "tls.client_ca_file: " + Path("ca.crt") + " is not a certificate", 2},
      {"an open key", [&] { chmod(Path("server.key").c_str(), 0644); },
       "tls.private_key_file: " + Path("server.key") + " has mode 0644", 2},
      {"no token", [&] { fs::remove(Path("token")); },
       "token_file: " + Path("token") + " cannot be read (No such file", 2},
      {"an open token", [&] { chmod(Path("token").c_str(), 0644); },
       "token_file: " + Path("token") + " has mode 0644", 2},
      {"an empty token", [&] { Write("token", ""); },
       "token_file: " + Path("token") + " has 0 bytes", 2},
      {"a taken port", [&] { config_ = Config(taken.address); },
       "listen_address: " + taken.address + " cannot be listened on (Address already in use)", 4},
      {"a taken port for the page", [&] { metrics_ = taken.address; },
       "metrics_address: " + taken.address + " cannot be listened on (Address already in use)", 4},
      {"an address of another machine", [&] { config_ = Config("192.0.2.1:50951"); },
       "listen_address: 192.0.2.1:50951 cannot be listened on (Cannot assign", 4}};
  const auto files = {"server.crt", "server.key", "ca.crt", "token"};
  fs::create_directory(folder_ / "kept");
  for (const char* file : files) fs::copy_file(folder_ / file, folder_ / "kept" / file);
  size_t refused = 0;
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    const std::string metrics = metrics_;
    mistake.make();
    // The same words from the program that only checks. It also writes the configuration for HUP.
    EXPECT_EQ(CheckConfig(), mistake.code);
    EXPECT_THAT(Output(), HasSubstr("nsa-coordinator: " + mistake.said));
    // metrics_address is a flag here, which a reload cannot change.
    if (metrics_ == metrics) {
      ASSERT_EQ(kill(pid, SIGHUP), 0);
      ++refused;
      ASSERT_TRUE(Within(absl::Minutes(1), [&] { return Count(kRefused) == refused; })) << Output();
      EXPECT_THAT(Output(), HasSubstr(kRefused + mistake.said));
      EXPECT_TRUE(AnswersOverTcp()) << Output();
    }
    metrics_ = metrics;
    config_ = good;
    for (const char* file : files) {
      fs::copy_file(folder_ / "kept" / file, folder_ / file, fs::copy_options::overwrite_existing);
      chmod((folder_ / file).c_str(), 0600);
    }
  }
  EXPECT_EQ(Count(kAnew), 0u);
  EXPECT_EQ(CheckConfig(), 0) << Output();
  EXPECT_THAT(Output(), HasSubstr("\ntls.certificate_file: " + Path("server.crt") + " ends on "));
  EXPECT_THAT(Output(),
              HasSubstr(" W coordinator: tls.client_ca_file: " + Path("ca.crt") + " ends on "))
      << "it has less than 30 days";
  ASSERT_EQ(kill(pid, SIGHUP), 0);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] { return Count(kAnew) == 1; })) << Output();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return AnswersOverTcp(); })) << Output();
}

TEST_F(ReloadTest, TakesNewCertificatesATokenAndAnAddress) {
  fs::copy_file(Path("ca.crt"), Path("authority"));
  const pid_t pid = Start("state");
  ASSERT_TRUE(AnswersOverTcp()) << Output();
  const HeldPort held;
  ASSERT_TRUE(MakeCertificates(folder_.path())) << "of another authority";
  EXPECT_FALSE(AnswersOverTcp("client")) << "it does not know that authority yet";
  config_ = Config("127.0.0.1" + held.port);
  ASSERT_EQ(CheckConfig(), 0) << Output();
  kill(pid, SIGHUP);
  fs::copy_file(Path("ca.crt"), Path("authority"), fs::copy_options::overwrite_existing);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] { return AnswersOverTcp(); })) << Output();
  EXPECT_EQ(TcpAddress(), "127.0.0.1" + held.port);
  // The same port at another address, which no other process could have meanwhile.
  config_ = Config("127.0.0.2" + held.port);
  ASSERT_EQ(CheckConfig(), 0) << Output();
  kill(pid, SIGHUP);
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return TcpAddress() == "127.0.0.2" + held.port; }))
      << Output();
}

// What only the start itself shows, e.g. a port that somebody took a moment before.
TEST_F(ReloadTest, GoesOnWithTheConfigurationBeforeIfTheNewOneDoesNotStart) {
  fs::copy_file(Path("ca.crt"), Path("authority"));
  const pid_t pid = Start("state");
  ASSERT_TRUE(AnswersOverTcp()) << Output();
  for (const char* program : {"sbatch", "squeue", "sacct", "scancel"}) {
    Write(program, "#!/bin/sh\n");
    chmod(Path(program).c_str(), 0700);
  }
  // A folder in a file cannot be made.
  config_ += absl::StrCat("provisioners: {slurm: {shared_dir: ", Path("token"),
                          "/here, bin_dir: ", folder_.path().string(),
                          ", coordinator_address: 127.0.0.1:1}}\n");
  ASSERT_EQ(CheckConfig(), 0) << Output();
  kill(pid, SIGHUP);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    return Count("the new configuration does not start: provisioners.slurm") == 1;
  })) << Output();
  EXPECT_TRUE(Within(absl::Minutes(1), [&] { return AnswersOverTcp(); })) << Output();
}

TEST_F(ReloadTest, ACheckWritesNothing) {
  config_ = "local_agent: false\n";
  EXPECT_EQ(CheckConfig(), 0) << Output();
  EXPECT_FALSE(fs::exists(folder_ / "state"));
  EXPECT_THAT(Output(), HasSubstr("the configuration is good"));
}

}  // namespace
}  // namespace nsa
