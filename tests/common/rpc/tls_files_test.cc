#include "common/rpc/tls_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() {
    EXPECT_TRUE(MakeCertificates(folder_.path()));
    tls_.set_certificate_file(Path("server.crt"));
    tls_.set_private_key_file(Path("server.key"));
    tls_.set_client_ca_file(Path("ca.crt"));
  }

  std::string Path(const std::string& name) { return (folder_ / name).string(); }
  std::string Content(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }
  absl::Status Read(absl::Time now = absl::Now()) { return ReadTlsFiles(tls_, now).status(); }

  const TempDir folder_;
  v1::TlsConfig tls_;
};

TEST_F(TlsFilesTest, HoldWhatIsSetAndWhenItEnds) {
  const auto files = ReadTlsFiles(tls_, absl::Now());
  ASSERT_OK(files.status());
  EXPECT_EQ(files->certificate, Content("server.crt"));
  EXPECT_EQ(files->private_key, Content("server.key"));
  EXPECT_EQ(files->authorities, Content("ca.crt"));
  ASSERT_EQ(files->ends.size(), 2u);
  EXPECT_EQ(files->ends[0].field, "tls.certificate_file");
  EXPECT_EQ(files->ends[1].file, Path("ca.crt"));
  for (const CertificateEnd& end : files->ends) {
    EXPECT_GT(end.until, absl::Now() + absl::Hours(47));
    EXPECT_LT(end.until, absl::Now() + absl::Hours(49));
  }
  v1::TlsConfig authority;
  authority.set_client_ca_file(Path("ca.crt"));
  EXPECT_EQ(ReadTlsFiles(authority, absl::Now())->certificate, "");
  EXPECT_TRUE(ReadTlsFiles({}, absl::Now())->ends.empty());
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificateIsNamed) {
  tls_.set_private_key_file(Path("client.key"));
  EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kUnauthenticated,
                               HasSubstr("tls.private_key_file: " + Path("client.key") +
                                         " is not the key of " + Path("server.crt"))));
}

TEST_F(TlsFilesTest, WhatIsNotPemIsNamed) {
  const std::string half = Content("ca.crt").substr(0, 300);
  for (const auto& [field, content] : std::vector<std::pair<std::string, std::string>>{
           {"certificate_file", "garbage"},
           {"certificate_file", ""},
           {"certificate_file", Content("server.key")},
           {"certificate_file", half},
           {"private_key_file", "garbage"},
           {"private_key_file", Content("server.crt")},
           {"client_ca_file", "garbage"},
           {"client_ca_file", Content("ca.crt") + half},
           {"client_ca_file", std::string((1 << 20) + 1, 'x')}}) {
    v1::TlsConfig tls = tls_;
    std::ofstream(Path("wrong")) << content;
    chmod(Path("wrong").c_str(), 0600);
    if (field == "certificate_file") tls.set_certificate_file(Path("wrong"));
    if (field == "private_key_file") tls.set_private_key_file(Path("wrong"));
    if (field == "client_ca_file") tls.set_client_ca_file(Path("wrong"));
    EXPECT_THAT(ReadTlsFiles(tls, absl::Now()).status(),
                StatusIs(absl::StatusCode::kUnauthenticated,
                         HasSubstr("tls." + field + ": " + Path("wrong"))))
        << content.substr(0, 40);
  }
}

TEST_F(TlsFilesTest, SeveralAuthoritiesAndAChainAreRead) {
  std::ofstream(Path("both")) << Content("other.crt") << Content("ca.crt");
  std::ofstream(Path("chain")) << Content("server.crt") << Content("ca.crt");
  tls_.set_client_ca_file(Path("both"));
  tls_.set_certificate_file(Path("chain"));
  EXPECT_OK(Read());
}

TEST_F(TlsFilesTest, AKeyThatOthersMayReadIsRefusedAndACertificateIsNot) {
  for (const mode_t mode : {0644, 0640, 0660}) {
    chmod(Path("server.key").c_str(), mode);
    EXPECT_THAT(Read(),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("tls.private_key_file: "), HasSubstr("has mode 06"),
                               HasSubstr("chmod 600 " + Path("server.key")))));
  }
  chmod(Path("server.key").c_str(), 0400);
  chmod(Path("server.crt").c_str(), 0644);
  EXPECT_OK(Read());
}

TEST_F(TlsFilesTest, ACertificateThatHasEndedIsRefusedWithItsRemedy) {
  const auto until = ReadTlsFiles(tls_, absl::Now())->ends[0].until;
  EXPECT_OK(Read(until - absl::Seconds(1)));
  EXPECT_THAT(
      Read(until),
      StatusIs(absl::StatusCode::kUnauthenticated,
               AllOf(HasSubstr("tls.certificate_file: " + Path("server.crt") + " ended on "),
                     HasSubstr("nsactl admin renew-tls"))));
  v1::TlsConfig authority;
  authority.set_client_ca_file(Path("ca.crt"));
  EXPECT_THAT(ReadTlsFiles(authority, until).status(),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("nsactl admin init-tls")));
}

TEST(CertificateEnd, IsSoonFromThirtyDaysOn) {
  const CertificateEnd end{"tls.certificate_file", "/x.crt",
                           absl::FromCivil(absl::CivilDay(2027, 1, 31), absl::UTCTimeZone())};
  const absl::Time month_before = end.until - absl::Hours(24 * 30);
  EXPECT_FALSE(EndsSoon(end, month_before));
  EXPECT_TRUE(EndsSoon(end, month_before + absl::Seconds(1)));
  EXPECT_EQ(EndText(end, month_before), "ends on 2027-01-31 00:00Z, in 30 days");
  EXPECT_EQ(EndText(end, end.until - absl::Hours(25)), "ends on 2027-01-31 00:00Z, in 1 day");
  EXPECT_THAT(RenewalText(end), HasSubstr("renew-tls"));
  EXPECT_THAT(RenewalText({"tls.client_ca_file", "/ca.crt", end.until}), HasSubstr("init-tls"));
}

TEST_F(TlsFilesTest, AFileThatCannotBeReadSaysWhy) {
  tls_.set_certificate_file(Path("none.crt"));
  EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kNotFound,
                               HasSubstr("tls.certificate_file: " + Path("none.crt") +
                                         " cannot be read (No such file or directory)")));
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  tls_.set_certificate_file(Path("server.crt"));
  chmod(folder_.path().c_str(), 0755);
  ASSERT_EQ(seteuid(65'534), 0);
  const absl::Status read = Read();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_THAT(read, StatusIs(absl::StatusCode::kNotFound,
                             AllOf(HasSubstr("tls.private_key_file: "),
                                   HasSubstr("it belongs to root with mode 0600"))));
}

}  // namespace
}  // namespace nsa
