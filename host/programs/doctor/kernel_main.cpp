#include "host/programs/doctor/kernel_steps.h"

int main(int argc, char** argv) { return gdx::doctor::run_kernel_program(argc, argv, nullptr); }
