// What nsactl reports for gRPC's texts about a failed connection.
#include "client/connect/grpc_failure.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;

TEST(GrpcFailure, EveryCauseHasAFewWords) {
  EXPECT_EQ(WhyUnreachable("failed to connect: No such file or directory"), "no such socket");
  EXPECT_EQ(WhyUnreachable("failed to connect: Connection refused"), "connection refused");
  EXPECT_EQ(WhyUnreachable("DNS resolution failed for moon:1"), "unknown host");
  EXPECT_EQ(WhyUnreachable("Socket closed"), "connection closed");
  EXPECT_EQ(WhyUnreachable("something new"), "something new");
  EXPECT_EQ(WhyUnreachable(std::string(500, 'x')).size(), 203u) << "and an ellipsis";
}

TEST(GrpcFailure, OnlyAHandshakeThatFailedHasATlsCause) {
  EXPECT_THAT(WhyTlsFailed("Peer name lab is not in peer certificate"),
              HasSubstr("subjectAltName"));
  EXPECT_THAT(WhyTlsFailed("Ssl handshake failed: SSL_ERROR_SSL"), HasSubstr("--ca-file"));
  EXPECT_EQ(WhyTlsFailed("Connection refused"), "");
}

TEST(GrpcFailure, AClosedConnectionMayBeTls) {
  EXPECT_THAT(ClosedConnectionHint("Socket closed", false, true), HasSubstr("client_ca_file"));
  EXPECT_THAT(ClosedConnectionHint("Connection reset by peer", false, false),
              HasSubstr("nsactl context --help"));
  EXPECT_EQ(ClosedConnectionHint("Socket closed", true, false), "");
  EXPECT_EQ(ClosedConnectionHint("Connection refused", false, true), "");
}

}  // namespace
}  // namespace nsa::client
