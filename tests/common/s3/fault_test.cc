#include "common/s3/fault.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

HttpReply Answer(int status, const std::string& code) {
  return {.status = status, .body = "<Error><Code>" + code + "</Code></Error>"};
}

TEST(S3Fault, TheCodeOfTheServiceDecides) {
  S3Access access;
  access.signature = HttpSignature{.key_id = "A", .secret = "hush"};
  access.from = "/home/ada/.aws/credentials";
  using Code = absl::StatusCode;
  const auto is = [&](const HttpReply& reply, Code code, const std::string& text) {
    EXPECT_THAT(S3Fault("s3://b/k", reply, access), StatusIs(code, HasSubstr(text)));
  };
  is(Answer(403, "SignatureDoesNotMatch"), Code::kPermissionDenied, "/home/ada/.aws/credentials");
  is(Answer(403, "RequestTimeTooSkewed"), Code::kFailedPrecondition, "NTP");
  is(Answer(404, "NoSuchBucket"), Code::kNotFound, "no such bucket");
  is(Answer(404, "NoSuchKey"), Code::kNotFound, "no such object");
  is(Answer(503, "SlowDown"), Code::kUnavailable, "HTTP 503, SlowDown");
  is(Answer(400, "RequestTimeout"), Code::kUnavailable, "RequestTimeout");
  is(Answer(400, "Whatever"), Code::kFailedPrecondition, "Whatever");
  is({.status = 500}, Code::kUnavailable, "HTTP 500");
  is({.status = 0, .fault = "connection refused"}, Code::kUnavailable, "connection refused");
  is({.status = 403}, Code::kPermissionDenied, "not allowed");
  is({.status = 301, .bucket_region = "eu-west-2"}, Code::kFailedPrecondition,
     "set AWS_REGION to eu-west-2");
  is({.status = 200, .body = "<Error><Code>InternalError</Code>"}, Code::kUnavailable,
     "InternalError");
  access.signature.reset();
  is(Answer(403, "AccessDenied"), Code::kPermissionDenied, "there are no credentials");
}

TEST(XmlText, IsTheTextOfTheFirstElement) {
  EXPECT_EQ(XmlText("<a><Key>x &amp; &quot;y&quot;</Key><Key>z</Key></a>", "Key"), "x & \"y\"");
  EXPECT_EQ(XmlText("<Key>x", "Key"), "");
  EXPECT_EQ(XmlText("", "Key"), "");
}

}  // namespace
}  // namespace nsa
