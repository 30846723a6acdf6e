#include "common/s3/access.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class S3AccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
          "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_REGION", "AWS_DEFAULT_REGION",
          "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
      unsetenv(name);
    }
    setenv("HOME", (home_ / "").c_str(), 1);
    std::filesystem::create_directories(home_ / ".aws");
  }

  void Write(const char* name, const std::string& text) {
    std::ofstream(home_ / ".aws" / name) << text;
  }

  TempDir home_;
};

TEST_F(S3AccessTest, WithoutCredentialsNothingIsSigned) {
  const auto access = S3AccessFromEnvironment();
  ASSERT_OK(access);
  EXPECT_FALSE(access->signature.has_value());
  EXPECT_EQ(access->region, "us-east-1");
}

TEST_F(S3AccessTest, TheEnvironmentCountsBeforeTheFile) {
  Write("credentials", "[default]\naws_access_key_id = F\naws_secret_access_key = G\n");
  EXPECT_EQ(S3AccessFromEnvironment()->signature->key_id, "F");
  setenv("AWS_ACCESS_KEY_ID", "E", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
  setenv("AWS_SESSION_TOKEN", "T", 1);
  setenv("AWS_REGION", "eu-central-1", 1);
  const auto access = S3AccessFromEnvironment();
  ASSERT_OK(access);
  EXPECT_EQ(access->signature->key_id, "E");
  EXPECT_EQ(access->signature->secret, "S");
  EXPECT_EQ(access->signature->session_token, "T");
  EXPECT_EQ(access->signature->region, "eu-central-1");
  EXPECT_EQ(access->from, "AWS_ACCESS_KEY_ID");
}

TEST_F(S3AccessTest, AProfileHasItsKeyRegionAndEndpoint) {
  Write("credentials",
        "# lab\n[default]\naws_access_key_id=D\naws_secret_access_key=D\n[lab]\n"
        "aws_access_key_id = L\naws_secret_access_key = a=b\naws_session_token = t\n");
  Write("config",
        "[profile lab]\nregion = eu-west-2\ns3 =\n  endpoint_url = http://no.example\n"
        "endpoint_url = http://127.0.0.1:9000/\n");
  setenv("AWS_PROFILE", "lab", 1);
  const auto access = S3AccessFromEnvironment();
  ASSERT_OK(access);
  EXPECT_EQ(access->signature->key_id, "L");
  EXPECT_EQ(access->signature->secret, "a=b");
  EXPECT_EQ(access->signature->session_token, "t");
  EXPECT_EQ(access->region, "eu-west-2");
  EXPECT_EQ(access->endpoint, "http://127.0.0.1:9000");
}

TEST_F(S3AccessTest, AnEmptyVariableMeansNoFile) {
  Write("credentials", "[default]\naws_access_key_id = F\naws_secret_access_key = G\n");
  setenv("AWS_SHARED_CREDENTIALS_FILE", "", 1);
  EXPECT_FALSE(S3AccessFromEnvironment()->signature.has_value());
}

TEST_F(S3AccessTest, WhatIsWrongIsNamedAndNotShown) {
  const auto refused = [](const std::string& what) {
    EXPECT_THAT(S3AccessFromEnvironment(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(what), Not(HasSubstr("hush")))));
  };
  setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
  refused("half a key");
  setenv("AWS_ACCESS_KEY_ID", "A\nX-Header: 1", 1);
  refused("characters that no key has");
  unsetenv("AWS_ACCESS_KEY_ID");
  unsetenv("AWS_SECRET_ACCESS_KEY");
  setenv("AWS_PROFILE", "none", 1);
  refused("AWS_PROFILE: none");
  unsetenv("AWS_PROFILE");
  for (const char* endpoint : {"minio:9000", "http://h/path", "ftp://h", "http://u:hush@h"}) {
    setenv("AWS_ENDPOINT_URL_S3", endpoint, 1);
    refused("AWS_ENDPOINT_URL_S3");
  }
  unsetenv("AWS_ENDPOINT_URL_S3");
  setenv("AWS_REGION", "evil.example/", 1);
  refused("AWS_REGION");
}

TEST(S3HttpUrl, TheBucketIsInTheHostAtAmazonAndInThePathElsewhere) {
  S3Access access = {.region = "eu-west-2"};
  EXPECT_EQ(S3HttpUrl(access, {"bucket", "a b/c?d"}),
            "https://bucket.s3.eu-west-2.amazonaws.com/a%20b/c%3Fd");
  EXPECT_EQ(S3HttpUrl(access, {"my.bucket", "k"}),
            "https://s3.eu-west-2.amazonaws.com/my.bucket/k");
  access.endpoint = "http://127.0.0.1:9000";
  EXPECT_EQ(S3HttpUrl(access, {"bucket", "k"}), "http://127.0.0.1:9000/bucket/k");
}

}  // namespace
}  // namespace nsa
