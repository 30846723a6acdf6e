#include "common/rpc/rpc.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.grpc.pb.h"

namespace nsa {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A service whose GetVersion always returns `status`.
class FailingService final : public v1::CoordinatorService::Service {
 public:
  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*,
                          v1::GetVersionResponse*) override {
    return status;
  }
  grpc::Status status;
};

// The status that a client with our channel settings receives.
grpc::Status OverTheWire(const grpc::Status& status) {
  const std::string folder = (std::filesystem::temp_directory_path() / "nsa-rpc-XXXXXX").string();
  std::string made = folder;
  EXPECT_NE(mkdtemp(made.data()), nullptr);
  FailingService service;
  service.status = status;
  grpc::ServerBuilder builder;
  const std::string address = absl::StrCat("unix:", made, "/s");
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel = OpenChannel(address, {});
  EXPECT_TRUE(channel.ok());
  const auto stub = v1::CoordinatorService::NewStub(*channel);
  const auto context = MakeContext(absl::Seconds(5), "");
  v1::GetVersionResponse response;
  const grpc::Status received = stub->GetVersion(context.get(), {}, &response);
  server->Shutdown();
  std::filesystem::remove_all(made);
  return received;
}

TEST(Rpc, CarriesCodeMessageReasonAndViolations) {
  const grpc::Status got = OverTheWire(ToGrpc(absl::InvalidArgumentError("train.steps: 0 (≥ 1)"),
                                              "PREFLIGHT_REFUSED", {{"train.steps", "too few"}}));
  EXPECT_EQ(FromGrpc(got), absl::InvalidArgumentError("train.steps: 0 (≥ 1)"));
  const ErrorDetails details = DetailsOf(got);
  EXPECT_EQ(details.reason, "PREFLIGHT_REFUSED");
  ASSERT_THAT(details.violations, SizeIs(1));
  EXPECT_EQ(details.violations[0].field, "train.steps");
  EXPECT_EQ(details.violations[0].description, "too few");
}

TEST(Rpc, ManyLongViolationsArriveCutAndCounted) {
  std::vector<FieldViolation> violations;
  for (int i = 0; i < 500; ++i) {
    violations.push_back({absl::StrCat("field.", i), std::string(300, 'x')});
  }
  const grpc::Status sent =
      ToGrpc(absl::InvalidArgumentError(std::string(5'000, 'm')), "R", violations);
  EXPECT_LE(sent.error_details().size() + sent.error_message().size(), 6'144u);
  const grpc::Status got = OverTheWire(sent);
  EXPECT_EQ(got.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(got.error_message(), EndsWith("..."));
  const ErrorDetails details = DetailsOf(got);
  ASSERT_GT(details.violations.size(), 2u);
  EXPECT_EQ(details.violations.back().description,
            absl::StrCat("and ", 500 - (details.violations.size() - 1), " more"));
}

TEST(Rpc, TextThatIsNotAsciiIsCutBetweenCharacters) {
  std::string message;
  for (int i = 0; i < 2'000; ++i) message += "é";
  const grpc::Status got = OverTheWire(ToGrpc(absl::NotFoundError(message)));
  EXPECT_EQ(got.error_code(), grpc::NOT_FOUND);
  EXPECT_LE(got.error_message().size(), 1'500u);
  EXPECT_THAT(got.error_message(), EndsWith("é..."));
}

TEST(Rpc, OkStaysOkAndForeignDetailsAreNone) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
  EXPECT_EQ(DetailsOf(grpc::Status(grpc::INTERNAL, "x", "\xFFgarbage")).reason, "");
}

TEST(Rpc, KnowsLoopbackAddressesAndNoImpostors) {
  for (const char* address : {"unix:/run/x.sock", "127.0.0.1:50951", "127.8.9.1:1", "localhost:1",
                              "[::1]:50951", "::1", "dns:///localhost:1", "ipv4:127.0.0.1:1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:50951", "10.0.0.1:1", "127.evil.example:1", "[::]:1",
                              "localhost.evil:1", "", ":1", "128.0.0.1:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(Rpc, AMissingTlsFileIsNamed) {
  v1::TlsConfig tls;
  tls.set_client_ca_file("/nonexistent/ca.pem");
  EXPECT_THAT(std::string(OpenChannel("127.0.0.1:1", tls).status().message()),
              HasSubstr("/nonexistent/ca.pem"));
}

TEST(Rpc, ACertificateWithoutItsKeyIsRefused) {
  v1::TlsConfig tls;
  tls.set_certificate_file("/c.pem");
  EXPECT_THAT(std::string(OpenChannel("127.0.0.1:1", tls).status().message()),
              HasSubstr("tls.certificate_file: /c.pem"));
  tls.clear_certificate_file();
  tls.set_private_key_file("/k.pem");
  EXPECT_THAT(std::string(OpenChannel("127.0.0.1:1", tls).status().message()),
              HasSubstr("tls.private_key_file: /k.pem"));
}

TEST(Rpc, TheStateDirFollowsTheEnvironment) {
  setenv("NSA_STATE_DIR", "/a", 1);
  EXPECT_EQ(DefaultStateDir(), "/a");
  unsetenv("NSA_STATE_DIR");
  setenv("XDG_STATE_HOME", "/b", 1);
  EXPECT_EQ(DefaultStateDir(), "/b/nsa");
  unsetenv("XDG_STATE_HOME");
  setenv("HOME", "/c", 1);
  EXPECT_EQ(DefaultStateDir(), "/c/.local/state/nsa");
}

}  // namespace
}  // namespace nsa
