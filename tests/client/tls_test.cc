// A coordinator, an agent and nsactl with the certificates that `nsactl admin init-tls` makes.
#include <cstdlib>
#include <sstream>

#include "client/cli.h"
#include "common/rpc/secret.h"
#include "tests/server/server_fixture.h"

namespace nsa::server {
namespace {

using client::ExitCode;
using ::testing::HasSubstr;

class TlsTest : public ServerTest {
 protected:
  TlsTest() : tls_dir_(folder_ / "tls") {
    for (const char* name : {"NSACTL_ADDRESS", "NSACTL_CONTEXT", "NSACTL_TIMEOUT", "NSACTL_OUTPUT",
                             "NSACTL_TOKEN", "NSACTL_TOKEN_FILE", "NSACTL_TLS_CA_FILE",
                             "NSACTL_TLS_CERTIFICATE_FILE", "NSACTL_TLS_PRIVATE_KEY_FILE"}) {
      unsetenv(name);
    }
    setenv("NSACTL_CONFIG", (folder_ / "config.yaml").c_str(), 1);
    EXPECT_EQ(Nsactl({"admin", "init-tls", tls_dir_.string(), "--host", "127.0.0.1", "--agent",
                      "gpu-01", "--client", "ada"}),
              ExitCode::kOk)
        << text_.str();
    tls_ = Material("coordinator");
    token_file_ = (tls_dir_ / "token").string();
    Restart();
  }

  ExitCode Nsactl(const std::vector<std::string>& arguments) {
    text_.str("");
    std::istringstream in;
    client::Interrupt interrupt;
    client::Session session(
        {.out = &text_, .err = &text_, .columns = [] { return 100; }, .in = &in}, &clock_,
        &interrupt);
    client::Cli cli(&session);
    return cli.Main(arguments);
  }

  v1::TlsConfig Material(const std::string& name) {
    v1::TlsConfig tls;
    tls.set_certificate_file((tls_dir_ / (name + ".crt")).string());
    tls.set_private_key_file((tls_dir_ / (name + ".key")).string());
    tls.set_client_ca_file((tls_dir_ / "ca.crt").string());
    return tls;
  }

  // `nsactl version` as ada, with these flags of `context set` in place of hers.
  ExitCode Version(const std::string& flag = "", const std::string& value = "") {
    const v1::TlsConfig ada = Material("ada");
    std::map<std::string, std::string> flags = {{"--token-file", token_file_},
                                                {"--ca-file", ada.client_ca_file()},
                                                {"--certificate-file", ada.certificate_file()},
                                                {"--private-key-file", ada.private_key_file()}};
    if (!flag.empty()) flags[flag] = value;
    std::vector<std::string> set = {"context", "set", "lab", "--address",
                                    server_->listen_address()};
    for (const auto& [name, file] : flags) set.insert(set.end(), {name, file});
    EXPECT_EQ(Nsactl(set), ExitCode::kOk) << text_.str();
    return Nsactl({"--context", "lab", "list"});
  }

  absl::Status Beat(const std::string& certificate, const std::string& secret) {
    const auto stub =
        v1::FleetService::NewStub(*OpenChannel(server_->listen_address(), Material(certificate)));
    v1::HeartbeatRequest request;
    request.mutable_node()->set_name("gpu-01");
    request.set_incarnation("1");
    const auto context = MakeContext(kTimeout, secret);
    v1::HeartbeatResponse response;
    return FromGrpc(stub->Heartbeat(context.get(), request, &response));
  }

  const std::filesystem::path tls_dir_;
  std::ostringstream text_;
};

TEST_F(TlsTest, NsactlCallsTheCoordinatorWithACertificateAndAToken) {
  EXPECT_EQ(Version(), ExitCode::kOk) << text_.str();
  const std::string wrong = (folder_ / "wrong").string();
  ASSERT_OK(MakeSecretFile("token", wrong).status());
  EXPECT_EQ(Version("--token-file", wrong), ExitCode::kAuth) << text_.str();
  EXPECT_NE(Version("--certificate-file", Material("gpu-01").certificate_file()), ExitCode::kOk)
      << "not the certificate of its key";
  ASSERT_EQ(Nsactl({"admin", "init-tls", (folder_ / "other").string()}), ExitCode::kOk);
  EXPECT_EQ(Version("--ca-file", (folder_ / "other/ca.crt").string()), ExitCode::kAuth)
      << text_.str();
  // The authority signs clients and servers; a client cannot pretend to be a server.
  tls_ = Material("ada");
  Restart();
  EXPECT_NE(Version(), ExitCode::kOk);
}

TEST_F(TlsTest, AnAgentJoinsWithItsCertificate) {
  ASSERT_EQ(Version(), ExitCode::kOk) << text_.str();
  ASSERT_EQ(Nsactl({"--context", "lab", "token", "create", "--role", "agent", "--node", "gpu-01",
                    "-o", "json"}),
            ExitCode::kOk);
  const std::string text = text_.str();
  const size_t at = text.find("\"secret\"");
  ASSERT_NE(at, std::string::npos) << text;
  v1::JoinRequest join;
  join.set_node("gpu-01");
  join.set_join_token(text.substr(text.find('"', text.find(':', at)) + 1, 64));
  join.set_secret_sha256(Sha256("the-secret-of-gpu-01"));
  const auto stub =
      v1::FleetService::NewStub(*OpenChannel(server_->listen_address(), Material("gpu-01")));
  v1::JoinResponse joined;
  const auto context = MakeContext(kTimeout, "");
  ASSERT_OK(FromGrpc(stub->Join(context.get(), join, &joined)));
  EXPECT_OK(Beat("gpu-01", "the-secret-of-gpu-01"));
  EXPECT_THAT(Beat("ada", "the-secret-of-gpu-01"),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("certificate gpu-01")));
}

TEST_F(TlsTest, RenewedCertificatesWorkWithThoseThatAreNot) {
  ASSERT_EQ(Nsactl({"admin", "renew-tls", tls_dir_.string()}), ExitCode::kOk) << text_.str();
  // The coordinator still has its old one, ada the new one.
  EXPECT_EQ(Version(), ExitCode::kOk) << text_.str();
  Restart();
  EXPECT_EQ(Version(), ExitCode::kOk) << text_.str();
}

}  // namespace
}  // namespace nsa::server
