// The signature against values of Python's hmac.
#include "server/notice/signature.h"

#include "gmock/gmock.h"

namespace nsa::server {
namespace {

// python3 -c 'import hmac; print(hmac.new(b"0123456789abcdef", b"1800000000.{\"a\":1}",
// "sha256").hexdigest())'
TEST(NoticeSignature, IsTheHmacThatPythonCalculates) {
  EXPECT_EQ(NoticeSignature("0123456789abcdef", 1'800'000'000, "{\"a\":1}"),
            "t=1800000000,v1=d3e17924cac4a72ca2ee9e5700df170fdb5733eaf69ecd909fb0c18a962b03a5");
}

TEST(NoticeSignature, ChangesWithTheKeyTheTimeAndTheBody) {
  const std::string one = NoticeSignature("0123456789abcdef", 1'800'000'000, "x");
  EXPECT_NE(one, NoticeSignature("0123456789abcdeF", 1'800'000'000, "x"));
  EXPECT_NE(one, NoticeSignature("0123456789abcdef", 1'800'000'000, "y"));
  const std::string later = NoticeSignature("0123456789abcdef", 1'800'000'001, "x");
  EXPECT_NE(one.substr(one.find("v1=")), later.substr(later.find("v1=")));
}

TEST(NoticeSignature, TakesKeysLongerThanABlockAndBodiesWithZeros) {
  const std::string body("\0\xff{}", 4);
  EXPECT_EQ(NoticeSignature(std::string(131, '\xaa'), 7, body),
            "t=7,v1=ab429569018dd484b8cdc3137b46629a00299226932ec2e025ed3d18e6dc730f");
}

}  // namespace
}  // namespace nsa::server
