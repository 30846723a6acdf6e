// nsactl admin: certificates in a folder. tls_test.cc starts a coordinator with them.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "client/admin/certificates.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/client/nsactl_harness.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class AdminTest : public NsactlTest {
 protected:
  Ran Init(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"admin", "init-tls", folder_.string()};
    words.insert(words.end(), more.begin(), more.end());
    return RunAlone(words);
  }

  std::map<std::string, std::string> Files() {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      files[entry.path().filename().string()] = text.str();
    }
    return files;
  }

  CertificateFacts FactsOf(const std::string& name) {
    const auto facts = ReadCertificate(Files()[name + ".crt"]);
    EXPECT_TRUE(facts.ok()) << facts.status();
    return facts.value_or(CertificateFacts());
  }

  bool IsPair(const std::string& name) {
    auto files = Files();
    return Belongs({.key = files[name + ".key"], .certificate = files[name + ".crt"]});
  }

  const fs::path folder_ = dir_ / "tls";
};

mode_t ModeOf(const fs::path& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

TEST_F(AdminTest, InitTlsTakesAnIpv6AddressInAnySpelling) {
  const std::string folder = folder_ / "six";
  const Ran ran =
      RunAlone({"admin", "init-tls", folder, "--host", "2001:DB8:0:0::5", "--agent", "a"});
  EXPECT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_TRUE(fs::exists(fs::path(folder) / "token"));
}

TEST_F(AdminTest, InitTlsMakesWhatOnlyTheOwnerCanReadAndSaysWhatToConfigure) {
  const Ran ran =
      Init({"--host", "lab", "--host", "10.0.0.5", "--agent", "gpu-01", "--client", "ada"});
  ASSERT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_EQ(ModeOf(folder_), 0700U);
  std::vector<std::string> names;
  for (const auto& [name, content] : Files()) {
    names.push_back(name);
    EXPECT_EQ(ModeOf(folder_ / name), 0600U) << name;
  }
  EXPECT_THAT(names, ElementsAre("ada.crt", "ada.key", "ca.crt", "ca.key", "coordinator.crt",
                                 "coordinator.key", "gpu-01.crt", "gpu-01.key", "token"));
  EXPECT_TRUE(FactsOf("ca").authority);
  EXPECT_THAT(FactsOf("coordinator").hosts,
              ElementsAre("lab", "10.0.0.5", "localhost", "127.0.0.1", "::1"));
  EXPECT_EQ(FactsOf("gpu-01").name, "gpu-01");
  for (const char* name : {"ca", "coordinator", "gpu-01", "ada"}) EXPECT_TRUE(IsPair(name)) << name;
  const std::string dir = folder_.string();
  EXPECT_THAT(ran.out, AllOf(HasSubstr("token_file: " + dir + "/token\n"),
                             HasSubstr("certificate_file: " + dir + "/coordinator.crt"),
                             HasSubstr("coordinator_address: lab:50951\n"),
                             HasSubstr("private_key_file: /etc/nsa/gpu-01.key"),
                             HasSubstr("`(umask 077; nsactl token create --role agent --node "
                                       "gpu-01 > join.token)`"),
                             HasSubstr("nsactl context set lab --address lab:50951")));
}

TEST_F(AdminTest, WhatIsThereIsKeptAndWhatIsMissingIsAdded) {
  ASSERT_EQ(Init({"--host", "lab", "--client", "ada"}).code, ExitCode::kOk);
  const auto before = Files();
  // Without --host it is the coordinator's certificate that says where it is.
  const Ran again = Init({"--agent", "gpu-02"});
  ASSERT_EQ(again.code, ExitCode::kOk) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("kept"), HasSubstr("coordinator_address: lab:50951")));
  auto after = Files();
  for (const auto& [name, content] : before) EXPECT_EQ(after[name], content) << name;
  EXPECT_EQ(after.size(), before.size() + 2);
  EXPECT_TRUE(IsPair("gpu-02"));

  // A certificate that was moved away is made again for the same key.
  fs::remove(folder_ / "ada.crt");
  ASSERT_EQ(Init({"--client", "ada"}).code, ExitCode::kOk);
  EXPECT_TRUE(IsPair("ada"));
  EXPECT_EQ(Files()["ada.key"], before.at("ada.key"));
  // A key that was moved to its machine is not made again.
  fs::remove(folder_ / "gpu-02.key");
  ASSERT_EQ(Init({"--agent", "gpu-02"}).code, ExitCode::kOk);
  EXPECT_FALSE(fs::exists(folder_ / "gpu-02.key"));
}

TEST_F(AdminTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  ASSERT_EQ(Init({"--host", "lab"}).code, ExitCode::kOk);
  const auto before = Files();
  const Ran host = Init({"--host", "elsewhere"});
  EXPECT_EQ(host.code, ExitCode::kPrecondition);
  EXPECT_THAT(host.err, AllOf(HasSubstr("coordinator.crt: is not for elsewhere (lab, "),
                              HasSubstr("move it away")));
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--agent", "ca"},
                                             {"--client", "coordinator"},
                                             {"--agent", "a", "--client", "a"},
                                             {"--agent", "../a"},
                                             {"--client", std::string(65, 'a')},
                                             {"--days", "0"},
                                             {"--days", "3651"}}) {
    EXPECT_EQ(Init(wrong).code, ExitCode::kUsage) << wrong[1];
  }
  EXPECT_EQ(Files(), before);
  const fs::path other = dir_ / "other";
  for (const char* name : {"lab:50951", "a,DNS:b", "-lab", "a b", ""}) {
    const Ran ran = RunAlone({"admin", "init-tls", other.string(), "--host", name});
    EXPECT_EQ(ran.code, ExitCode::kUsage) << name;
    EXPECT_THAT(ran.err, HasSubstr("host: ")) << name;
  }
  fs::copy_file(folder_ / "client.key", folder_ / "coordinator.key",
                fs::copy_options::overwrite_existing);
  const Ran swapped = Init();
  EXPECT_EQ(swapped.code, ExitCode::kPrecondition);
  EXPECT_THAT(swapped.err, HasSubstr("coordinator.key: is not the key of"));
  fs::remove(folder_ / "ca.key");
  EXPECT_THAT(Init().err, HasSubstr("its key ca.key is not in the folder"));
}

TEST_F(AdminTest, RenewTlsSignsAgainForTheSameKeys) {
  ASSERT_EQ(Init({"--host", "lab", "--agent", "gpu-01", "--days", "30"}).code, ExitCode::kOk);
  auto before = Files();
  EXPECT_EQ(FactsOf("gpu-01").until, clock_.Wall() + absl::Hours(24 * 30));
  const Ran ran = RunAlone({"admin", "renew-tls", folder_.string(), "--days", "60"});
  ASSERT_EQ(ran.code, ExitCode::kOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("renewed"), HasSubstr("gpu-01.crt")));
  EXPECT_THAT(ran.err, HasSubstr("reload the coordinator"));
  auto after = Files();
  for (const char* same : {"ca.crt", "ca.key", "gpu-01.key", "coordinator.key", "token"}) {
    EXPECT_EQ(after[same], before[same]) << same;
  }
  for (const char* name : {"coordinator", "gpu-01"}) {
    EXPECT_TRUE(IsPair(name)) << name;
    EXPECT_EQ(FactsOf(name).until, clock_.Wall() + absl::Hours(24 * 60));
    EXPECT_EQ(ModeOf(folder_ / (std::string(name) + ".crt")), 0600U);
  }
  EXPECT_THAT(FactsOf("coordinator").hosts, ElementsAre("lab", "localhost", "127.0.0.1", "::1"));
  // Ten years at most: as long as the authority.
  const Ran longest = RunAlone({"admin", "renew-tls", folder_.string(), "--days", "3650"});
  EXPECT_EQ(FactsOf("gpu-01").until, FactsOf("ca").until) << longest.err;
}

// The coordinator runs as another user than root, who may call nsactl.
TEST_F(AdminTest, AsRootFilesStayAndBecomeThoseOfTheFoldersOwner) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t kNsa = 65'534;
  const auto owner = [&](const std::string& name) {
    struct stat info {};
    return stat((folder_ / name).c_str(), &info) == 0 ? info.st_uid : 0;
  };
  fs::create_directory(folder_);
  ASSERT_EQ(chown(folder_.c_str(), kNsa, kNsa), 0);
  ASSERT_EQ(Init({"--host", "lab", "--days", "30"}).code, ExitCode::kOk);
  for (const char* name : {"ca.key", "coordinator.crt", "coordinator.key", "client.crt", "token"}) {
    EXPECT_EQ(owner(name), kNsa) << name;
  }
  const auto before = Files();
  ASSERT_EQ(chown((folder_ / "client.crt").c_str(), 0, 0), 0);
  ASSERT_EQ(chmod((folder_ / "coordinator.crt").c_str(), 0644), 0);
  ASSERT_EQ(RunAlone({"admin", "renew-tls", folder_.string()}).code, ExitCode::kOk);
  EXPECT_NE(Files()["coordinator.crt"], before.at("coordinator.crt"));
  EXPECT_EQ(owner("coordinator.crt"), kNsa);
  EXPECT_EQ(ModeOf(folder_ / "coordinator.crt"), 0644U);
  EXPECT_EQ(owner("client.crt"), 0U);
  EXPECT_EQ(ModeOf(folder_ / "client.crt"), 0600U);
  EXPECT_EQ(Files().size(), before.size());
}

TEST_F(AdminTest, RenewTlsReplacesNothingWhenOneCertificateIsOfAnotherAuthority) {
  ASSERT_EQ(Init({"--host", "lab"}).code, ExitCode::kOk);
  const std::string stranger = (dir_ / "stranger").string();
  ASSERT_EQ(RunAlone({"admin", "init-tls", stranger}).code, ExitCode::kOk);
  fs::copy_file(stranger + "/client.crt", folder_ / "zoe.crt");
  const auto before = Files();
  const Ran ran = RunAlone({"admin", "renew-tls", folder_.string()});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("zoe.crt"), HasSubstr("not signed by this authority")));
  EXPECT_EQ(Files(), before);
  EXPECT_EQ(RunAlone({"admin", "renew-tls", (dir_ / "none").string()}).code, ExitCode::kNotFound);
}

TEST_F(AdminTest, OutputForProgramsNamesEveryCertificate) {
  const Ran ran = Init({"--host", "lab", "-o", "json"});
  ASSERT_EQ(ran.code, ExitCode::kOk) << ran.err;
  const auto document = nlohmann::json::parse(ran.out);
  ASSERT_EQ(document["certificates"].size(), 3U);
  EXPECT_EQ(document["certificates"][0]["name"], "ca");
  EXPECT_EQ(document["certificates"][1]["hosts"][0], "lab");
  EXPECT_EQ(document["certificates"][2]["made"], true);
  EXPECT_THAT(ran.out, Not(HasSubstr("PRIVATE KEY")));
  EXPECT_EQ(Init({"-o", "name"}).out, "ca\ncoordinator\nclient\n");
}

}  // namespace
}  // namespace nsa::client
