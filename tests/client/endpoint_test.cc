#include "client/connect/endpoint.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EndpointTest : public ::testing::Test {
 protected:
  EndpointTest() {
    for (const char* name : {"NSACTL_ADDRESS", "NSACTL_CONTEXT", "NSACTL_TOKEN",
                             "NSACTL_TOKEN_FILE", "NSACTL_TLS_CA_FILE"}) {
      unsetenv(name);
    }
    setenv("NSACTL_CONFIG", (dir_ / "config.yaml").c_str(), 1);
    setenv("NSA_STATE_DIR", "/state", 1);
    Write("token", "secret\n");
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
  }

  void WriteTwoContexts() {
    Write("config.yaml", "current: lab\ncontexts:\n- name: lab\n  address: lab:1\n  token_file: " +
                             (dir_ / "token").string() +
                             "\n- name: home\n  address: unix:/home.sock\n");
  }

  std::string Address(const std::string& address_flag, const std::string& context_flag) {
    const auto endpoint = ResolveEndpoint(address_flag, context_flag);
    return endpoint.ok() ? endpoint->address + " from " + endpoint->source
                         : endpoint.status().ToString();
  }

  TempDir dir_;
};

TEST_F(EndpointTest, WithoutAnythingItIsThisMachinesSocket) {
  EXPECT_EQ(Address("", ""), "unix:/state/coordinator.sock from default");
}

TEST_F(EndpointTest, AFlagBeatsTheEnvironmentWhichBeatsTheCurrentContext) {
  WriteTwoContexts();
  EXPECT_EQ(Address("", ""), "lab:1 from context lab");
  setenv("NSACTL_CONTEXT", "home", 1);
  EXPECT_EQ(Address("", ""), "unix:/home.sock from context home");
  setenv("NSACTL_ADDRESS", "env:2", 1);
  EXPECT_EQ(Address("", ""), "env:2 from NSACTL_ADDRESS");
  EXPECT_EQ(Address("", "lab"), "lab:1 from context lab");
  EXPECT_EQ(Address("flag:3", "lab"), "flag:3 from --address");
  EXPECT_EQ(Address("/run/x.sock", ""), "unix:/run/x.sock from --address");
}

TEST_F(EndpointTest, AContextThatIsNotThereIsNotFound) {
  WriteTwoContexts();
  EXPECT_THAT(ResolveEndpoint("", "moon"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'moon' (from --context)")));
}

TEST_F(EndpointTest, TheTokenGoesWithItsContextOnly) {
  WriteTwoContexts();
  EXPECT_EQ(ResolveEndpoint("", "")->token, "secret");
  EXPECT_EQ(ResolveEndpoint("", "home")->token, "");
  // Another address than the current context's does not receive it …
  EXPECT_EQ(ResolveEndpoint("elsewhere:1", "")->token, "");
  // … unless the context was asked for by name.
  EXPECT_EQ(ResolveEndpoint("elsewhere:1", "lab")->token, "secret");
  setenv("NSACTL_CONTEXT", "lab", 1);
  EXPECT_EQ(ResolveEndpoint("", "")->token, "secret");
  EXPECT_EQ(ResolveEndpoint("elsewhere:1", "")->token, "") << "no flag names the context";
  unsetenv("NSACTL_CONTEXT");
  setenv("NSACTL_TOKEN", "other", 1);
  EXPECT_EQ(ResolveEndpoint("", "")->token, "other");
}

TEST_F(EndpointTest, ATcpAddressOnLoopbackGetsTheTokenOfThisMachinesCoordinator) {
  EXPECT_EQ(ResolveEndpoint("127.0.0.1:50951", "")->token, "") << "no coordinator made one";
  setenv("NSA_STATE_DIR", dir_.path().c_str(), 1);
  for (const char* own : {"127.0.0.1:50951", "localhost:50951", "[::1]:50951"}) {
    EXPECT_EQ(ResolveEndpoint(own, "")->token, "secret") << own;
  }
  for (const char* other : {"lab:50951", "10.0.0.1:50951", "unix:/run/x.sock"}) {
    EXPECT_EQ(ResolveEndpoint(other, "")->token, "") << other;
  }
  setenv("NSACTL_TOKEN", "given", 1);
  EXPECT_EQ(ResolveEndpoint("127.0.0.1:50951", "")->token, "given");
}

TEST_F(EndpointTest, ATokenFileThatCannotBeReadIsAnAuthenticationError) {
  setenv("NSACTL_TOKEN_FILE", (dir_ / "missing").c_str(), 1);
  EXPECT_THAT(ResolveEndpoint("", ""), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(EndpointTest, AConfigWithMistakesNamesTheirPlaces) {
  Write("config.yaml", "current: lab\ncontext: []\n");
  EXPECT_THAT(ResolveEndpoint("", ""),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("config.yaml:2:1"), HasSubstr("contexts"))));
  Write("config.yaml", "current: moon\ncontexts: [{name: lab, address: a}]\n");
  EXPECT_THAT(ResolveEndpoint("", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'moon'")));
  EXPECT_OK(ResolveEndpoint("elsewhere:1", "")) << "the address says which coordinator";
  EXPECT_OK(ResolveEndpoint("", "lab"));
  Write("config.yaml", "contexts: [{name: lab}, {name: lab}]\n");
  EXPECT_THAT(ResolveEndpoint("", ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'lab'")));
}

TEST_F(EndpointTest, AWrittenConfigReadsBackAndIsTheOwnersAlone) {
  v1::ClientConfig config;
  config.set_current("a");
  config.add_contexts()->set_name("a");
  config.mutable_contexts(0)->set_address("unix:/x y: z");
  config.mutable_contexts(0)->mutable_tls()->set_client_ca_file("/ca.pem");
  const auto path = dir_ / "sub/config.yaml";
  ASSERT_OK(WriteClientConfig(path, config));
  const auto read = ReadClientConfig(path);
  ASSERT_OK(read);
  EXPECT_EQ(read->SerializeAsString(), config.SerializeAsString());
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  config.mutable_contexts(0)->set_address(std::string(100, 'x'));
  absl::Status full;
  {
    const FileSizeLimit limit(20);
    full = WriteClientConfig(path, config);
  }
  EXPECT_THAT(std::string(full.message()), HasSubstr("cannot be written (File too large)"));
  EXPECT_EQ(ReadClientConfig(path)->SerializeAsString(), read->SerializeAsString());
  const auto link = dir_ / "link.yaml";
  std::filesystem::create_symlink(path, link);
  ASSERT_OK(WriteClientConfig(link, config));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadClientConfig(path)->SerializeAsString(), config.SerializeAsString());
}

}  // namespace
}  // namespace nsa::client
