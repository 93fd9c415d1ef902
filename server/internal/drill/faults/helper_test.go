package faults

const clientMode = "LEASEHOLD_FAULTS_CLIENT"

func beClient(string) int { return 2 }
