#include "common/job/data/url.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/data/url_policy.h"
#include "common/job/data_source.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Url, HasSchemeHostPortAndTarget) {
  const auto url = ParseUrl("HTTPS://Example.COM/a/b.parquet?x=1");
  ASSERT_OK(url);
  EXPECT_EQ(url->origin(), "https://example.com:443");
  EXPECT_EQ(url->target, "/a/b.parquet?x=1");
  EXPECT_EQ(ParseUrl("http://h")->target, "/");
  EXPECT_EQ(ParseUrl("http://h?q")->target, "/?q");
  EXPECT_EQ(ParseUrl("http://[::1]:9000/x")->origin(), "http://[::1]:9000");
  EXPECT_EQ(ParseUrl("http://[::1]/x")->origin(), "http://[::1]:80");
}

TEST(Url, WhatCannotBeReadIsRefusedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"gs://bucket/a.parquet",
       "neither a path nor a URL that is read (https://, http://, hf:// or s3://)"},
      {"s3://bucket/*.parquet", "only hf:// can list files"},
      {"s3://bucket", "has no key"},
      {"s3://bucket/", "has no key"},
      {"s3://Bucket/a", "no bucket that can exist"},
      {"s3://b/a", "no bucket that can exist"},
      {"s3://a..b/a", "no bucket that can exist"},
      {"s3://bucket:9000/a", "no bucket that can exist"},
      {"s3://bucket/a/../b", "an empty segment, . or .."},
      {"s3://bucket/a//b", "an empty segment, . or .."},
      {"s3://bucket/a\nb", "control character"},
      {"file:///etc/passwd", "neither a path nor a URL"},
      {"https://", "no valid host and port"},
      {"https:///x", "no valid host and port"},
      {"https://h:0/x", "no valid host and port"},
      {"https://h:66000/x", "no valid host and port"},
      {"https://h:x/y", "no valid host and port"},
      {"https://h/a b", "percent-encode it"},
      {"https://h/\xc3\xa9", "percent-encode it"},
      {"https://h/a\nHost: other", "percent-encode it"},
      {"https://h/a#b", "fragment"},
      {"https://h/a/../b", ". or .. in its path"},
      {"https://h/a/%2E%2e/b", ". or .. in its path"},
      {"https://h/a%2F..%2fb", ". or .. in its path"},
      {"https://h/*.parquet", "only hf:// can list files"},
      {"hf://models/a/b/c", "is not of the form hf://datasets/OWNER/NAME[@REVISION]/PATH"},
      {"hf://datasets/a/b", "is not of the form"},
      {"hf://datasets/a/b/", "is not of the form"},
      {"hf://datasets/a/b@/c", "is not of the form"},
      {"hf://datasets/a b/c/d", "is not of the form"},
      {"hf://datasets/../b/c", "is not of the form"},
      {"hf://datasets/a/b/../../x/y/z", ". or .. in its path"},
      {"hf://datasets/a/b/*/x.parquet", "a wildcard in a folder's name"},
  };
  for (const auto& [url, why] : bad) {
    EXPECT_THAT(CheckDataUrl(url), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << url;
  }
  EXPECT_THAT(CheckDataUrl("https://h/" + std::string(4000, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4010 bytes (at most 4000)")));
  EXPECT_OK(CheckDataUrl("https://h/a.parquet?download=true&x=*"));
  EXPECT_OK(CheckDataUrl("hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"));
  EXPECT_OK(CheckDataUrl("hf://datasets/a/b/data [v2]/*.parquet"));
}

// URLs are in logs and events.
TEST(Url, APasswordIsRefusedAndNotRepeated) {
  EXPECT_THAT(CheckDataUrl("https://ada:secret@h/x"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("user name or a password"), Not(HasSubstr("secret")))));
}

TEST(Url, AKeyInTheUrlOfAnObjectIsRefusedAndNotRepeated) {
  EXPECT_THAT(CheckDataUrl("s3://AKIA:secret@bucket/x"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a key or a password"), Not(HasSubstr("secret")))));
}

TEST(Url, AnObjectHasABucketAndAKeyAsItIsWritten) {
  const auto object = ParseS3Url("s3://my.bucket-1/a b/c%20d?e.jsonl.zst");
  ASSERT_OK(object);
  EXPECT_EQ(object->bucket, "my.bucket-1");
  EXPECT_EQ(object->key, "a b/c%20d?e.jsonl.zst");
  EXPECT_EQ(WithoutQuery("s3://b/c?d.txt"), "s3://b/c?d.txt");
  EXPECT_EQ(ParseS3Url("s3://bucket/runs/", /*folder=*/true)->key, "runs");
  EXPECT_FALSE(ParseS3Url("s3://bucket/runs/").ok());
  EXPECT_FALSE(ParseS3Url("s3://bucket/" + std::string(1025, 'x')).ok());
}

TEST(Url, AHubPathHasARevision) {
  const auto main = ParseHubUrl("hf://datasets/o/n/a/b.parquet");
  ASSERT_OK(main);
  EXPECT_EQ(main->repository, "o/n");
  EXPECT_EQ(main->revision, "main");
  EXPECT_EQ(main->path, "a/b.parquet");
  EXPECT_EQ(ParseHubUrl("hf://datasets/o/n@v1.2/b")->revision, "v1.2");
  EXPECT_EQ(main->key(), "o/n@main");
  EXPECT_FALSE(main->pinned());
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  EXPECT_TRUE(ParseHubUrl("hf://datasets/o/n@" + commit + "/b")->pinned());
  EXPECT_FALSE(ParseHubUrl("hf://datasets/o/n@" + commit.substr(1) + "/b")->pinned());
  EXPECT_FALSE(ParseHubUrl("hf://datasets/o/n@g" + commit.substr(1) + "/b")->pinned());
  EXPECT_EQ(ParseHubUrl("hf://datasets/o/n@refs%2Fconvert%2Fparquet/b")->revision,
            "refs%2Fconvert%2Fparquet");
}

TEST(Url, AReferenceOfTheHubHasThreeParts) {
  const auto parquet =
      ParseHubUrl("hf://datasets/o/n@refs/convert/parquet/default/train/0.parquet");
  ASSERT_OK(parquet);
  EXPECT_EQ(parquet->repository, "o/n");
  EXPECT_EQ(parquet->revision, "refs%2Fconvert%2Fparquet");
  EXPECT_EQ(parquet->path, "default/train/0.parquet");
  EXPECT_EQ(ParseHubUrl("hf://datasets/o/n@refs/pr/7/a.txt")->revision, "refs%2Fpr%2F7");
  EXPECT_EQ(ParseHubUrl("hf://datasets/o/n@refs/heads/a%2Fb/c")->revision, "refs%2Fheads%2Fa%2Fb");
  EXPECT_EQ(ParseHubUrl("hf://datasets/o/n@refs/tags/v1/a.txt")->path, "a.txt");
  EXPECT_EQ(ParseHubUrl("hf://datasets/o/n@v1/refs/pr/7")->path, "refs/pr/7");
  EXPECT_OK(CheckDataUrl("hf://datasets/o/n@refs/convert/parquet/default/train/*.parquet"));
  for (const char* end : {"other/x/y", "convert/parquet", "convert/parquet/", "convert/parquet//a",
                          "pr", "pr//a", "convert/../a"}) {
    EXPECT_THAT(ParseHubUrl(absl::StrCat("hf://datasets/o/n@refs/", end)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("begins with refs/")))
        << end;
  }
  EXPECT_THAT(ParseHubUrl("hf://datasets/o/n@refs/heads/a%2F..%2Fb/c"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(". or ..")));
}

TEST(Url, AModelOfTheHubIsARepositoryAtARevision) {
  const auto main = ParseHubModelUrl("hf://Qwen/Qwen3-0.6B");
  ASSERT_OK(main);
  EXPECT_EQ(main->repository, "Qwen/Qwen3-0.6B");
  EXPECT_EQ(main->revision, "main");
  EXPECT_EQ(main->path, "");
  EXPECT_EQ(main->key(), "models/Qwen/Qwen3-0.6B@main") << "not that of a data set of this name";
  EXPECT_EQ(ParseHubModelUrl("hf://o/n@v1/")->revision, "v1");
  EXPECT_EQ(ParseHubModelUrl("hf://o/n@refs/pr/7")->revision, "refs%2Fpr%2F7");
  EXPECT_EQ(ParseHubModelUrl("hf://o/n@refs/pr/7/config.json")->path, "config.json");
  for (const char* bad : {"hf://datasets/o/n", "hf://o", "hf://o/", "hf://o/n@", "hf://../n",
                          "hf://o/..", "hf://o/n//a", "https://o/n", "o/n"}) {
    EXPECT_THAT(ParseHubModelUrl(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not of the form")))
        << bad;
  }
  EXPECT_THAT(ParseHubModelUrl("hf://o/n/../../x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(". or ..")));
  EXPECT_THAT(ParseHubModelUrl("hf://o/n@refs/pr"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("begins with refs/")));
  EXPECT_OK(CheckHubModel("hf://o/n@v1"));
  EXPECT_THAT(CheckHubModel("hf://o/n/config.json"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("only a whole model")));
  EXPECT_FALSE(CheckDataUrl("hf://o/n/train.jsonl").ok());
}

TEST(Url, TheEndingOfTheNameIsBeforeTheQuery) {
  EXPECT_EQ(WithoutQuery("https://h/a.jsonl.gz?x=.parquet"), "https://h/a.jsonl.gz");
  EXPECT_EQ(WithoutQuery("/a?b"), "/a?b");
  EXPECT_EQ(TextSourceOf("https://h/a.parquet?download=true"), v1::DATA_SOURCE_PARQUET);
}

TEST(UrlPolicy, TheDefaultAllowsHttpsAndTheHubAtPublicAddresses) {
  const auto policy = UrlPolicy::Make(DefaultAllowedUrls());
  ASSERT_OK(policy);
  EXPECT_TRUE(policy->Allows("https://example.com/x"));
  EXPECT_TRUE(policy->Allows("hf://datasets/a/b/c"));
  EXPECT_FALSE(policy->Allows("http://example.com/x"));
  EXPECT_FALSE(policy->AllowsAnyAddress(*ParseUrl("https://example.com/x")));
}

TEST(UrlPolicy, AnEntryWithAHostAllowsItsAddressAndNoOtherHostThatBeginsLikeIt) {
  const auto policy = UrlPolicy::Make({"http://10.0.0.7:9000/sets/", "https://data.example"});
  ASSERT_OK(policy);
  EXPECT_TRUE(policy->Allows("http://10.0.0.7:9000/sets/a"));
  EXPECT_TRUE(policy->AllowsAnyAddress(*ParseUrl("http://10.0.0.7:9000/sets/a")));
  EXPECT_FALSE(policy->Allows("http://10.0.0.7:9000/other"));
  EXPECT_FALSE(policy->Allows("http://10.0.0.7/sets/a"));
  EXPECT_FALSE(policy->Allows("http://10.0.0.7:9000/sets/../other"));
  EXPECT_TRUE(policy->Allows("https://data.example/x"));
  EXPECT_FALSE(policy->Allows("https://data.example.org/x"));
  EXPECT_FALSE(policy->Allows("hf://datasets/a/b/c"));
}

TEST(UrlPolicy, OneDataSetOfTheHubCanBeAllowed) {
  const auto policy = UrlPolicy::Make({"hf://datasets/a/b/"});
  ASSERT_OK(policy);
  EXPECT_TRUE(policy->Allows("hf://datasets/a/b/c"));
  EXPECT_FALSE(policy->Allows("hf://datasets/a/bc/d"));
}

// Requests to an object store are signed: somebody must have allowed its bucket.
TEST(UrlPolicy, ABucketIsAllowedByAnEntryOnly) {
  EXPECT_FALSE(UrlPolicy::Make(DefaultAllowedUrls())->Allows("s3://bucket/a"));
  EXPECT_FALSE(UrlPolicy::Make({"https://", "http://", "hf://"})->Allows("s3://bucket/a"));
  const auto policy = UrlPolicy::Make({"s3://bucket/sets/"});
  ASSERT_OK(policy);
  EXPECT_TRUE(policy->Allows("s3://bucket/sets/a"));
  EXPECT_FALSE(policy->Allows("s3://bucket/other"));
  EXPECT_FALSE(policy->Allows("s3://bucket-2/sets/a"));
  EXPECT_TRUE(UrlPolicy::Make({"s3://"})->Allows("s3://bucket-2/sets/a"));
  EXPECT_FALSE(UrlPolicy::Make({"s3://bucket"}).ok()) << "bucket-2 begins like it";
}

TEST(UrlPolicy, NoneAllowsNothingAndAStarEverything) {
  EXPECT_FALSE(UrlPolicy::Make({"none"})->Allows("https://example.com/x"));
  EXPECT_FALSE(UrlPolicy().Allows("https://example.com/x"));
  EXPECT_TRUE(UrlPolicy::Make({"*"})->Allows("http://127.0.0.1/x"));
  EXPECT_TRUE(UrlPolicy::Make({"*"})->AllowsAnyAddress(*ParseUrl("http://127.0.0.1/x")));
  for (const char* bad : {"", "example.com", "ftp://x/", "hf://datasets/a", "https://a b/"}) {
    EXPECT_THAT(UrlPolicy::Make({bad}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("allowed_urls")))
        << bad;
  }
  EXPECT_FALSE(UrlPolicy::Make({"none", "https://"}).ok());
}

}  // namespace
}  // namespace nsa
