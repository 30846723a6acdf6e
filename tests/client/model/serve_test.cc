// nsactl serve with the worker that it starts.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/run/process.h"
#include "tests/client/model/trained_model_in_folder.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/within.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServeTest : public TrainedModelInFolder {
 protected:
  // Where the program says that it serves; empty when it does not.
  std::string AwaitAddress() {
    const std::string before = "at http://";
    EXPECT_TRUE(Within(absl::Seconds(60), [&] {
      return Said().find("/v1 (") != std::string::npos;
    })) << Said();
    const std::string said = Said();
    const size_t begin = said.find(before) + before.size();
    return said.substr(begin, said.find("/v1 (") - begin);
  }
};

TEST_F(ServeTest, ServesUntilCtrlC) {
  const ProcessIdentity process = Start({"nsactl", "serve", "artifacts/tiny", "--listen",
                                         "localhost:0", "--context", "64", "--slots", "2"});
  const std::string address = AwaitAddress();
  EXPECT_THAT(Said(), AllOf(StartsWith("serving tiny, step 2, at http://127.0.0.1:"),
                            HasSubstr("(context 64 tokens, slots 2, caches 0."),
                            HasSubstr(" MiB, CPU); Ctrl-C ends it\n")));
  EXPECT_THAT(HttpRead(HttpSend(
                  address, absl::StrCat("GET /v1/models HTTP/1.1\r\nHost: ", address, "\r\n\r\n"))),
              HasSubstr("\"id\":\"tiny\""));
  ASSERT_OK(SignalProcess(process, SIGINT));
  EXPECT_EQ(Wait(process).exit.code, 130);
  EXPECT_FALSE(HttpSend(address, "x").valid()) << "nsactl has waited for the worker's end";
}

TEST_F(ServeTest, TheWorkerEndsWithZeroWhenItIsAskedTo) {
  const ProcessIdentity process =
      Start({"nsa-worker", "serve", "artifacts/tiny", "--listen", "127.0.0.1:0", "--threads", "1"});
  EXPECT_THAT(AwaitAddress(), StartsWith("127.0.0.1:"));
  ASSERT_OK(SignalProcess(process, SIGTERM));
  EXPECT_EQ(Wait(process).exit.code, 0);
}

TEST_F(ServeTest, RefusesWithTheExitCodesOfNsactl) {
  const Ran absent = Run({"nsactl", "serve", "artifacts/none"});
  EXPECT_EQ(absent.exit.code, 3);
  EXPECT_THAT(absent.said, HasSubstr("nsactl: artifacts/none: no checkpoint"));
  // Before anything else is looked at.
  const Ran nowhere = Run({"nsactl", "serve", "artifacts/none", "--listen", "abc"});
  EXPECT_EQ(nowhere.exit.code, 2);
  EXPECT_THAT(nowhere.said, StartsWith("nsactl: --listen: 'abc' (HOST:PORT"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--listen", "0.0.0.0:8000"}, "asks nobody for a password"},
      {{"--listen", "8000"}, "--listen: '8000' (HOST:PORT"},
      {{"--context", "-1"}, "--context"},
      {{"--slots", "65"}, "--slots"},
      {{"-o", "json"}, "serve prints plain text"}};
  for (const auto& [flags, why] : wrong) {
    std::vector<std::string> words = {"nsactl", "serve", "artifacts/tiny"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Ran ran = Run(words);
    EXPECT_EQ(ran.exit.code, 2) << flags[0];
    EXPECT_THAT(ran.said, HasSubstr(why));
  }
  const Ran alone = Run({"nsa-worker", "--job", "job.yaml", "serve", "artifacts/tiny"});
  EXPECT_EQ(alone.exit.code, 2);
  EXPECT_THAT(alone.said, HasSubstr("--job (is not of a command)"));
}

}  // namespace
}  // namespace nsa::client
