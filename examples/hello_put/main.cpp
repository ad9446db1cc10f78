// Each rank puts a greeting to its right neighbour: gdx run --ranks 3 -- hello_put
#include "greetings.h"

int main() {
  gdx::Team team = gdx::program::or_exit(gdx::Team::create());
  example::exchange_greetings(team);
}
